"""Axes along which an array is the same: the rows of a batch, of which each has a copy."""

from __future__ import annotations

from jaxpr_opt.analysis.windows.row_axes import axis_of_operand
from jaxpr_opt.bridge.parameters import broadcast_dimensions_of
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Value


@remembered
def is_repeated(value: Value, axis: int) -> bool:
    """Whether all rows along an axis are the same, by what makes them: each is computed from the
    same row of what is itself repeated, and from what has no such axis.
    """
    op = value.op
    if op is None:
        return False
    if op.name == "broadcast_in_dim":
        kept = tuple(broadcast_dimensions_of(op))
        row = op.operands[0].shape[kept.index(axis)] if axis in kept else 1
        if row == 1:
            return True
    found = ((v, axis_of_operand(op, n, axis)) for n, v in enumerate(op.operands))
    rows = [(v, a) for v, a in found if a is not None]
    return bool(rows) and all(is_repeated(v, a) for v, a in rows)
