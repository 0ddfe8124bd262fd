"""Reduce what a loop stacks in its steps."""

from __future__ import annotations

from jaxpr_opt.analysis.rows.reduced_stacks import ReducedStacks, first_of
from jaxpr_opt.analysis.rows.row_axes import axis_of_operand
from jaxpr_opt.analysis.rows.row_readers import made_before
from jaxpr_opt.bridge.parameters import of_one_row
from jaxpr_opt.builders.residual_transfer import streamed_along
from jaxpr_opt.builders.same_op import COMBINED, on_others
from jaxpr_opt.ir.graph import Carry, Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def reduce_in_steps(found: ReducedStacks, rw: Rewriter) -> None:
    """Carry what is reduced so far; drop stacks that nothing reads any more."""
    scan = found.scan
    for value in (*found.outer, *found.streamed):
        for op in made_before(value, scan) or ():
            rw.move(op, scan)
    rows = _rows(found, rw)
    carries = [_carry(op, rows[op.operands[0]], scan, rw) for op in found.reductions]
    rw.set_scan(scan, carries=[*scan.carries, *carries])
    for op, carry in zip(found.reductions, carries, strict=True):
        rw.replace(op.result, carry.result)
        rw.erase(op)
    for value in reversed(found.made):
        if value.op is not None and not value.uses:
            rw.erase(value.op)
    rw.set_scan(scan, stacks=[stack for stack in scan.stacks if stack.result.uses])


def _rows(found: ReducedStacks, rw: Rewriter) -> dict[Value, Value]:
    """The row of each value that is reduced, in a step; one element along the axis of the rows."""
    scan, end = found.scan, found.scan.body.terminator
    rows = {
        stack.result: rw.reshape(stack.value, (1, *stack.value.shape), before=end)
        for stack in scan.stacks
        if stack.result in found.stacks
    }
    for array, axis in found.streamed.items():
        rows[array] = streamed_along(array, axis, scan, rw, before=end)
    for value, axis in found.made.items():
        op = value.op
        assert op is not None
        operands = [rows.get(each, each) for each in op.operands]
        params = of_one_row(op, axis_of_operand(op, 0, axis), axis)
        rows[value] = on_others(op, operands, rw, before=end, params=params)
    return rows


def _carry(op: Op, row: Value, scan: Scan, rw: Rewriter) -> Carry:
    """What an op makes of the rows so far."""
    end, aval = scan.body.terminator, op.result.aval
    one = on_others(op, [row], rw, before=end)
    init = rw.full(first_of(op), aval, before=scan)
    param, result = rw.new_value(aval), rw.new_value(aval, op.result.name)
    following = rw.typed(COMBINED[op.name], aval, param, one, before=end)
    return Carry(init, param, following, result)
