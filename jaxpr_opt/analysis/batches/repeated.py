"""Axes along which an array is the same: the rows of a batch, of which each has a copy."""

from __future__ import annotations

from math import gcd, prod

from jaxpr_opt.analysis.rows.row_axes import axis_of_operand
from jaxpr_opt.bridge.parameters import broadcast_dimensions_of, dimensions_of, is_in_order
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Value


def is_repeated(value: Value, axis: int) -> bool:
    """Whether all rows along an axis are the same, by what makes them."""
    rows = value.shape[axis]
    return value.op is not None and copies(value, axis) == rows


@remembered
def copies(value: Value, axis: int) -> int:
    """Of how many copies, one after the other, an axis is known to consist: each row is computed
    from the same row of what consists of copies itself, and from what has no such axis.
    """
    op, rows = value.op, value.shape[axis]
    if op is None or rows == 0:
        return 1
    if op.name == "broadcast_in_dim":
        kept = tuple(broadcast_dimensions_of(op))
        row = op.operands[0].shape[kept.index(axis)] if axis in kept else 1
        if row == 1:
            return int(rows)
    if op.name in ("reshape", "squeeze"):
        return _of_reshape(op, axis)
    if op.name == "rev":
        return copies(op.operands[0], axis)
    found = ((v, axis_of_operand(op, n, axis)) for n, v in enumerate(op.operands))
    return gcd(*(copies(v, a) for v, a in found if a is not None)) or 1


@remembered
def times(value: Value, axis: int) -> int:
    """How often each row along an axis is known to be there, one after the other: each row is
    computed from the same row of what repeats its rows so, and from what has no such axis.
    """
    op, rows = value.op, value.shape[axis]
    if op is None or rows == 0 or is_repeated(value, axis):
        return int(rows) if op is not None else 1
    if op.name in ("reshape", "squeeze"):
        return _of_merged(op, axis)
    found = ((v, axis_of_operand(op, n, axis)) for n, v in enumerate(op.operands))
    return gcd(*(times(v, a) for v, a in found if a is not None)) or 1


def _of_merged(op: Op, axis: int) -> int:
    """The same of the last axes of the operand of which an axis of the result is merged."""
    (source,), rows, count = op.operands, op.result.shape[axis], 1
    if op.name == "reshape" and not is_in_order(op):
        return 1
    after = prod(op.result.shape[axis + 1 :])
    for own in reversed(range(len(source.shape))):
        size = source.shape[own]
        if prod(source.shape[own + 1 :]) != after or size == 1:
            continue
        known = times(source, own)
        if rows % size:
            return count * (gcd(known, rows) if size % rows == 0 else 1)
        count, rows, after = count * known, rows // size, after * size
        if known < size or rows == 1:
            break
    return count


def _of_reshape(op: Op, axis: int) -> int:
    """The copies of the first axes of the operand that an axis of the result is made of."""
    (source,), rows, count = op.operands, op.result.shape[axis], 1
    in_order = op.name == "squeeze" or is_in_order(op)
    axes = range(len(source.shape)) if in_order else dimensions_of(op)
    sizes, before = [source.shape[own] for own in axes], prod(op.result.shape[:axis])
    for place, own in enumerate(axes):
        size = sizes[place]
        if prod(sizes[:place]) != before or size == 1:
            continue
        known = copies(source, own)
        if rows % size or known < size:  # the axis ends in this one, or its copies do
            return count * gcd(known, rows)
        count, rows, before = count * known, rows // size, before * size
        if rows == 1:
            break
    return count
