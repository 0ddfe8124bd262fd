"""Data movement of what is written to an array, moved before the write: of the window only."""

from __future__ import annotations

from collections.abc import Container
from functools import partial

import jax
from jax import lax

from jaxpr_opt.analysis.values.algebra import Plainer
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.values.moves import is_taken_back
from jaxpr_opt.analysis.windows.window_primitives import (
    UPDATE,
    places,
    written_in_each,
    written_transposed,
)
from jaxpr_opt.bridge.parameters import (
    broadcast_dimensions_of,
    combiner_of,
    is_in_order,
    is_resharded,
    permutation_of,
)
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import SUMS


def written_back(op: Op) -> Plainer | None:
    """A write into a transposed array, or an addition, whose result is transposed back, is one into
    the array, of a transposed window.
    """
    write = op.operands[0].op
    if write is None or write.name not in UPDATE:
        return None
    if write.name == "scatter" and combiner_of(write):
        return None
    array = write.operands[0]
    # Condition 1 of remove-idle-moves.
    if array.op is None or not is_taken_back(array.op, op):
        return None
    update, at = write.operands[UPDATE[write.name]], places(write)
    moved = partial(written_transposed, write, permutation_of(op))
    return Plainer(moved, (array.op.operands[0], update, *at))


def spread_before(op: Op) -> Plainer | None:
    """A window in zeros that is repeated for each row of a batch, and then added to others, is that
    window in the zeros of each row.

    `vmap` makes such an array of the cotangent of a read that is linear, beside others that are
    not: theirs differ between the rows. Many windows are added up before they are repeated, and
    outside of loops the whole array is as fast.
    """
    write, shape = window_in_zeros(op, op.operands[0]), op.result.shape
    if write is None or len(op.operands) > 1 or is_resharded(op):
        return None
    first = len(shape) - len(write.result.shape)
    # Condition 1 of remove-idle-moves.
    if broadcast_dimensions_of(op) != (*range(first, len(shape)),):
        return None
    # Condition 1 of remove-idle-moves.
    if shape[first:] != write.result.shape:
        return None
    rows = shape[:first]
    operands = tuple(write.operands)
    if write.name != "pad":
        operands = (operands[0], operands[UPDATE[write.name]], *places(write))

    def spread(array: jax.Array, value: jax.Array, *at: jax.Array) -> jax.Array:
        value = value if write.name == "pad" else lax.broadcast(value, rows)
        return written_in_each(write, rows, lax.broadcast(array, rows), value, *at)

    return Plainer(spread, operands)


MOVED_BEFORE = frozenset({
    "broadcast_in_dim", "convert_element_type", "div", "dot_general", "dynamic_update_slice", "mul",
    "neg", "pad", "reshape", "rev", "slice", "transpose",
})  # fmt: skip
"""Ops that may come before a write into zeros instead of after it."""


def window_in_zeros(op: Op, array: Value, kinds: Container[str] = ("pad", *UPDATE)) -> Op | None:
    """The op that writes a small window into zeros, from which an op of a loop computes a term of a
    sum.
    """
    write, users = array.op, op.result.users
    if write is None or write.name not in kinds or loop_of(op) is None:
        return None
    if not users or any(user.name not in SUMS and user.name not in MOVED_BEFORE for user in users):
        return None
    if write.name == "scatter" and combiner_of(write):
        return None
    value = write.operands[UPDATE.get(write.name, 0)]
    if not cost_model().is_sparse(value.nbytes, write.result.nbytes):
        return None
    # Condition 1 of remove-idle-moves, map-before-writing.
    is_zero = uniform(write.operands[1 if write.name == "pad" else 0]) == 0
    return write if is_zero else None


def spread_at_once(op: Op) -> Plainer | None:
    """The law reshape(broadcast(x)) = broadcast(x), where axes of size 1 come or go."""
    inner = op.operands[0].op
    if inner is None or inner.name != "broadcast_in_dim" or len(inner.operands) != 1:
        return None
    if is_resharded(inner) or is_resharded(op) or (op.name == "reshape" and not is_in_order(op)):
        return None
    (source,), shape = inner.operands, op.result.shape
    before, after = _long_axes(inner.result), _long_axes(op.result)
    sizes = [[v.shape[i] for i in axes] for v, axes in ((inner.result, before), (op.result, after))]
    axes = broadcast_dimensions_of(inner)
    if sizes[0] != sizes[1] or not set(axes) <= set(before):  # (1)
        return None
    moved = dict(zip(before, after, strict=True))
    dimensions = tuple(moved[axis] for axis in axes)
    return Plainer(lambda x: lax.broadcast_in_dim(x, shape, dimensions), (source,))


def _long_axes(value: Value) -> list[int]:
    return [axis for axis, size in enumerate(value.shape) if size != 1]
