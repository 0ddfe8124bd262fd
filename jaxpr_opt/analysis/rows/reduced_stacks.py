"""Reductions over the steps of a loop of what is made of the rows that it stacks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jaxpr_opt.analysis.rows.row_axes import axis_of_operand, row_axis
from jaxpr_opt.analysis.rows.row_readers import is_by_row, made_before
from jaxpr_opt.analysis.rows.streamed_rows import is_new
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import axes_of
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Scan, Stack, Value
from jaxpr_opt.ir.nesting import dominates
from jaxpr_opt.ir.traits import COMBINING, PICKING, REDUCING, can_move


@dataclass(slots=True, eq=False)
class ReducedStacks:
    """What a step makes of its rows, to be reduced over all steps."""

    scan: Scan
    reductions: tuple[Op, ...] = ()
    made: dict[Value, int] = field(default_factory=dict)
    """What a step makes for its row, operands first, and the axis of the rows."""
    stacks: dict[Value, None] = field(default_factory=dict)
    """The stacks of which rows are read."""
    streamed: dict[Value, int] = field(default_factory=dict)
    """What is there before the loop and has a row for each step, likewise."""
    outer: dict[Value, None] = field(default_factory=dict)
    """What is there before the loop, and is the same for each row."""

    @property
    def needed(self) -> int:
        """Bytes that are carried, and of arrays that are new."""
        carried = sum(op.result.nbytes for op in self.reductions)
        return carried + sum(v.nbytes for v, axis in self.streamed.items() if is_new(v, axis))


def reduced_stacks(scan: Scan, stack: Stack) -> ReducedStacks | None:
    """The reductions that read a stack, if nothing else reads it, and all that they reduce."""
    reductions = _reductions(scan, stack)
    if not reductions:
        return None
    found = ReducedStacks(scan, tuple(reductions))
    is_known = all(_add_row(op.operands[0], axis, found) for op, axis in reductions.items())
    return found if is_known else None


def _reductions(scan: Scan, stack: Stack) -> dict[Op, int] | None:
    """The reductions that read what is made of the rows of a stack, and the axis of the rows there;
    None if something else reads it.
    """
    found: dict[Op, int] = {}
    pending = {stack.result: 0}
    while pending:
        value, axis = pending.popitem()
        for op, position in value.uses:
            # Condition 1 of reduce-stacked-rows.
            if op.region is not scan.region or not op.operands:
                return None
            if op.name in REDUCING and axis in axes_of(op):
                if not _is_in_any_order(op):
                    return None
                found[op] = axis
                continue
            to = row_axis(op, position, axis) if is_by_row(op, spreads=True) else None
            # Condition 1 of reduce-stacked-rows.
            if to is None:
                return None
            pending[op.result] = to
    return found


def _is_in_any_order(op: Op) -> bool:
    """Whether an op reduces row by row as it reduces all at once."""
    if op.name not in COMBINING or not can_move(op) or is_sharded(op.result):
        return False
    # Condition 2 of reduce-stacked-rows.
    if first_of(op) is None:
        return False
    # Condition 2 of reduce-stacked-rows.
    if op.name not in PICKING and dtypes.is_inexact(op.result.dtype):
        return op.name == "reduce_sum" and not dtypes.is_half(op.result.dtype)
    return dtypes.is_of_bytes(op.result.dtype) and op.result.dtype.kind != "c"


def first_of(op: Op) -> Any:
    """What a reduction begins with: it changes nothing with which it is combined; None if there is
    no such number.
    """
    return dtypes.neutral(op.result.dtype, COMBINING[op.name])


def _add_row(value: Value, axis: int, found: ReducedStacks) -> bool:
    """Add a value, and what it is made of, to what a step makes; False if a step cannot."""
    scan, op = found.scan, value.op
    if value in found.made or value in found.streamed:
        return {**found.streamed, **found.made}[value] == axis
    if op is scan:
        # Condition 3 of reduce-stacked-rows.
        found.stacks[value] = None
        return axis == 0 and any(stack.result is value for stack in scan.stacks)
    if made_before(value, scan) is not None and not _is_spread_later(value, scan):
        found.streamed[value] = axis
        return True
    # Condition 4 of reduce-stacked-rows.
    if op is None or op.region is not scan.region or not is_by_row(op, spreads=True):
        return False
    axes = [axis_of_operand(op, i, axis) for i in range(len(op.operands))]
    if op.name == "gather" and axes[0] is None:
        return False
    for each, at in zip(op.operands, axes, strict=True):
        # Condition 3 of reduce-stacked-rows.
        if at is None and made_before(each, scan) is None:
            return False
        if at is None:
            found.outer[each] = None
        elif not _add_row(each, at, found):
            return False
    found.made[value] = axis
    return True


def _is_spread_later(value: Value, scan: Scan) -> bool:
    """Whether an array is larger than what it repeats, and is made after the loop."""
    op = value.op
    if op is None or op.name != "broadcast_in_dim" or dominates(value, scan):
        return False
    return value.nbytes > op.operands[0].nbytes
