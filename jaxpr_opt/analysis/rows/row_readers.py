"""Ops after a loop that make something smaller of each row of a stack, which a step could do."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpr_opt.analysis.rows.row_axes import row_axis
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Scan, Stack, Value
from jaxpr_opt.ir.nesting import dominates
from jaxpr_opt.ir.traits import ELEMENTWISE, REDUCING, RESHAPING, can_move, is_arithmetic

_SUMMING = frozenset({"reduce_prod", "reduce_sum"})
"""Reductions that may combine the numbers of a row in another order where there are fewer rows."""

_READING = frozenset({"gather", "slice"})

_READS_BY_ROW = _READING | REDUCING | RESHAPING | ELEMENTWISE | {"transpose"}


@dataclass(frozen=True, slots=True, eq=False)
class RowReader:
    """Ops one after the other, each of which makes rows of the rows that the one before made; the
    axis along which the rows of each result lie.
    """

    ops: tuple[tuple[Op, int], ...]

    @property
    def result(self) -> Value:
        return self.ops[-1][0].result


def row_readers(scan: Scan, stack: Stack) -> tuple[RowReader, ...] | None:
    """The ops that read a stack, if each makes something smaller of each row."""
    found = []
    for user in dict.fromkeys(stack.result.users):
        reader = _reader(user, stack.result, scan)
        # Condition 1 of map-stacked-rows.
        if reader is None:
            return None
        found.append(reader)
    return tuple(found) if found else None


def _reader(user: Op, stack: Value, scan: Scan) -> RowReader | None:
    """A reader that ends where what is made is least; None if it is never less than the stack."""
    value, axis, op = stack, 0, user
    ops: list[tuple[Op, int]] = []
    least, end = stack.nbytes, 0
    while True:
        to = _rows_of(op, value, axis, scan)
        if to is None:
            break
        ops.append((op, to))
        value, axis = op.result, to
        if value.nbytes < least:
            least, end = value.nbytes, len(ops)
        users = set(value.users)
        if len(users) != 1:
            break
        (op,) = users
    return RowReader(tuple(ops[:end])) if end else None


def _rows_of(op: Op, value: Value, axis: int, scan: Scan) -> int | None:
    """The axis along which the rows lie that an op makes of the rows of a value; None if it makes
    no rows of them, or of more than them.
    """
    if op.region is not scan.region or not is_by_row(op):
        return None
    axes = {row_axis(op, i, axis) for i, v in enumerate(op.operands) if v is value}
    to = axes.pop() if len(axes) == 1 else None
    # Condition 1 of map-stacked-rows.
    others = [(i, v) for i, v in enumerate(op.operands) if v is not value]
    is_known = all(_is_same_for_rows(op, i, v, to, scan) for i, v in others)
    return to if to is not None and is_known else None


def is_by_row(op: Op, *, spreads: bool = False) -> bool:
    """Whether an op is computed for one row as for many, in no more time; also one that repeats
    numbers, if that is asked.
    """
    is_known = op.name in _READS_BY_ROW or (spreads and op.name == "broadcast_in_dim")
    if not is_known or len(op.results) != 1 or not can_move(op):
        return False
    if any(map(is_sharded, (*op.operands, op.result))):
        return False
    # Condition 2 of map-stacked-rows.
    if op.name in REDUCING:
        return op.name not in _SUMMING or not dtypes.is_inexact(op.result.dtype)
    return op.name in _READING or is_arithmetic(op)


# Condition 3 of map-stacked-rows.
def _is_same_for_rows(op: Op, position: int, value: Value, to: int | None, scan: Scan) -> bool:
    """Whether an operand can be there before the loop, and is the same for each row."""
    if not _has_rows(op, position, to):
        return made_before(value, scan) is not None
    made = value.op
    if made is None or made.name != "broadcast_in_dim" or value.shape != op.result.shape:
        return False
    return not _has_rows(made, 0, to) and made_before(made.operands[0], scan) is not None


def _has_rows(op: Op, position: int, to: int | None) -> bool:
    """Whether an operand has a row for each of those that lie along an axis of the result."""
    return any(row_axis(op, position, a) == to for a in range(len(op.operands[position].shape)))


def made_before(value: Value, scan: Scan) -> list[Op] | None:
    """The ops after a loop, in order, that can make a value before it; None if it needs more."""
    if dominates(value, scan):
        return []
    ops = backward_slice([value], lambda v: dominates(v, scan))
    is_free = all(op is not scan and op.region is scan.region and can_move(op) for op in ops)
    return ops if ops and is_free else None
