"""Which axis of a result the rows of an operand are along: seen by changing a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt.analysis.rows.row_axes import row_axis
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import random_inputs, traced

ROW = "f32[3,4]"
READ = jax.vmap(lambda x, i: lax.dynamic_index_in_dim(x, i, keepdims=False))
WRITE = jax.vmap(lambda x, i, u: x.at[i].set(u))


def convolved(images, kernels, **groups):
    return lax.conv_general_dilated(images, kernels, (1,), "SAME", **groups)


FOLLOWED = {
    "elementwise": (jnp.tanh, ROW),
    "with one for all": (lambda x, y: x + y[None], ROW, "f32[4]"),
    "sum": (lambda x: x.sum(1), ROW),
    "argmax": (lambda x: x.argmax(1), ROW),
    "cumsum": (lambda x: jnp.cumsum(x, 1), ROW),
    "sort": (lambda x: jnp.sort(x, 1), ROW),
    "reversed": (lambda x: x[:, ::-1], ROW),
    "transposed": (lambda x: x.T, ROW),
    "reshaped": (lambda x: x.reshape(3, 2, 2), ROW),
    "an axis more": (lambda x: x[None, :, None], ROW),
    "broadcast": (lambda x: jnp.broadcast_to(x[:, None], (2, 3, 5, 4)), ROW),
    "part": (lambda x: x[:, 1:3], ROW),
    "padded": (lambda x: jnp.pad(x, ((0, 0), (1, 2))), ROW),
    "joined": (lambda x, y: jnp.concatenate([x, y], 1), ROW, "f32[3,2]"),
    "put beside others": (lambda x, y: jnp.stack([x, y], 1), ROW, ROW),
    "put before others": (lambda x, y: jnp.stack([x, y]), ROW, ROW),
    "taken apart": (lambda x: jnp.unstack(x, axis=1)[2], ROW),
    "window": (lambda x, i: lax.dynamic_slice(x, (0, i), (3, 2)), ROW, "i32[]"),
    "written window": (lambda x, u: lax.dynamic_update_slice(x, u, (0, 1)), ROW, "f32[3,2]"),
    "window of another": (lambda u, x: lax.dynamic_update_slice(x, u, (0, 1)), "f32[3,2]", ROW),
    "times a matrix": (lambda x, w: x @ w, ROW, "f32[4,5]"),
    "a matrix times it": (lambda x, w: jnp.einsum("wk,bk->wb", w, x), ROW, "f32[5,4]"),
    "batched product": (lambda x, y: jnp.einsum("bk,bkn->nb", x, y), ROW, "f32[3,4,2]"),
    "batched other factor": (lambda y, x: jnp.einsum("bk,bkn->nb", x, y), "f32[3,4,2]", ROW),
    "images": (lambda x, w: convolved(x[:, None], w), ROW, "f32[5,1,2]"),
    "kernels": (lambda w, x: convolved(x, w[:, None]), ROW, "f32[2,1,9]"),
    "read": (READ, "f32[3,4,2]", "i32[3]"),
    "read at": (lambda i, x: x[i], "i32[3]", "f32[7,2]"),
    "read at one place": (lambda x, i: x[:, i], "f32[3,4,2]", "i32[]"),
    "written to": (WRITE, ROW, "i32[3]", "f32[3]"),
    "written": (lambda u, x, i: WRITE(x, i, u), "f32[3]", ROW, "i32[3]"),
    "written at": (lambda i, x, u: WRITE(x, i, u), "i32[3]", ROW, "f32[3]"),
    "column written to": (lambda x, i, u: x.at[:, i].set(u), ROW, "i32[]", "f32[3]"),
    "column added": (lambda u, x, i: x.at[:, i].add(u), "f32[3]", ROW, "i32[]"),
    "chosen": (lambda x, y: jnp.where(y > 0, x, y), ROW, ROW),
}
LOST = {
    "sum over rows": (lambda x: x.sum(0), ROW),
    "cumsum over rows": (lambda x: jnp.cumsum(x, 0), ROW),
    "sorted rows": (lambda x: jnp.sort(x, 0), ROW),
    "rows reversed": (lambda x: x[::-1], ROW),
    "rows joined": (lambda x, y: jnp.concatenate([x, y], 0), ROW, ROW),
    "rows taken apart": (lambda x: jnp.unstack(x)[1], ROW),
    "some rows": (lambda x: x[1:], ROW),
    "rows between": (lambda x: jnp.pad(x, ((1, 0), (0, 0))), ROW),
    "reshaped across rows": (lambda x: x.reshape(4, 3), ROW),
    "contracted": (lambda x, y: jnp.einsum("bk,bn->kn", x, y), ROW, ROW),
    "features": (lambda x, w: convolved(x[None], w), ROW, "f32[5,3,2]"),
    "features of kernels": (lambda w, x: convolved(x, w[None]), ROW, "f32[2,3,9]"),
    "samples": (lambda x, w: convolved(x.T[:, None], w), ROW, "f32[5,1,2]"),
    "groups of images": (
        lambda x, w: convolved(x[:, None], w, batch_group_count=3),
        ROW,
        "f32[3,1,2]",
    ),
    "groups of features": (
        lambda w, x: convolved(x, w[:, None], feature_group_count=3),
        ROW,
        "f32[2,3,9]",
    ),
    "a window of rows": (lambda x, i: lax.dynamic_slice(x, (i, 0), (2, 4)), ROW, "i32[]"),
    "some rows written": (lambda u, x: lax.dynamic_update_slice(x, u, (1, 0)), ROW, "f32[5,4]"),
    "rows read": (lambda x, i: x[i], ROW, "i32[5]"),
    "rows written to": (lambda x, i, u: x.at[i].set(u), ROW, "i32[2]", "f32[2,4]"),
    "written by row number": (lambda u, i, x: x.at[i].set(u), ROW, "i32[3]", "f32[7,4]"),
}


def along(program, *types):
    """The axis of the result that the first axis of the first argument becomes, op by op."""
    body = import_jaxpr(traced(program, *types)).body
    axes = {body.params[0]: 0}
    for op in body.ops:
        found = {row_axis(op, i, axes[v]) for i, v in enumerate(op.operands) if v in axes}
        if op.is_terminator or not found:
            continue
        if None in found:
            return None
        (axis,) = found
        axes |= dict.fromkeys(op.results, axis)
    (result,) = body.outputs
    return axes[result]


@pytest.mark.parametrize("name", FOLLOWED)
def test_rows_stay_apart(name):
    """What changes in a row changes in that row of the result only."""
    program, *types = FOLLOWED[name]
    axis = along(program, *types)
    args = random_inputs(traced(program, *types).in_avals)
    changed = jnp.asarray(args[0]).at[1].add(1)
    before, after = (
        np.asarray(program(*map(jnp.asarray, each))) for each in (args, [changed, *args[1:]])
    )
    rows = np.moveaxis(before != after, axis, 0)
    assert rows.shape[0] == 3
    assert not rows[[0, 2]].any()


@pytest.mark.parametrize("name", LOST)
def test_rows_that_meet_or_move(name):
    program, *types = LOST[name]
    assert along(program, *types) is None
