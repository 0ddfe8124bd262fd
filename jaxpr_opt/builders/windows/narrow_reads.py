"""Read windows of an op's operands instead of a window of its result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.masks.masks_at_windows import AtWindow, predicate_at
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.ir.graph import Op, Value

Code = Callable[..., jax.Array]


def spread_out(read: Op, root: Value, at_window: AtWindow) -> tuple[Code, tuple[Value, ...]]:
    """A window of a broadcast, as a broadcast of a window, or of `root` itself."""
    shape = read.result.shape

    def fun(root: jax.Array) -> jax.Array:
        spread = at_window(root)
        return spread if spread.shape == shape else lax.broadcast_in_dim(spread, shape, ())

    return fun, (root,)


def read_operands(made_by: Op, access: Access) -> tuple[Code, tuple[Value, ...]]:
    """A window of an elementwise result, computed from windows of the operands, and scalars."""
    op, count, shape = access.op, len(made_by.operands), access.array.shape
    assert op.primitive is not None and made_by.primitive is not None
    read = partial(op.primitive.bind, **op.params)
    make = partial(made_by.primitive.bind, **made_by.params)

    def fun(*values: jax.Array) -> jax.Array:
        operands, indices = values[:count], values[count:]
        whole = (jnp.broadcast_to(x, shape) if x.ndim else x for x in operands)
        made: jax.Array = make(*(read(x, *indices) if x.ndim else x for x in whole))
        return made

    return fun, (*made_by.operands, *access.indices)


def read_cases(select: Op, access: Access) -> tuple[Code, tuple[Value, ...]]:
    """A window of a select, as a select between windows of its cases."""
    which, *cases = select.operands
    predicate, at_window = predicate_at(access, which)
    primitive, params = access.op.primitive, access.op.params
    assert primitive is not None

    def fun(predicate: Any, *operands: Any) -> jax.Array:
        cases, indices = operands[:2], operands[2:]
        read = [primitive.bind(case, *indices, **params) for case in cases]
        return lax.select_n(at_window(predicate, *indices), *read)

    return fun, (predicate, *cases, *access.indices)
