"""The sum over a batch of what a loop adds up or stacks, made step by step."""

from __future__ import annotations

from functools import reduce

from jax import lax

from jaxpr_opt.analysis.batches.summed_in_steps import SummedInSteps
from jaxpr_opt.analysis.rows.row_readers import made_before
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.builders.batches.batch_sums import masks_of, sum_of_term
from jaxpr_opt.ir.graph import Carry, Op, Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter


def sum_in_steps(found: SummedInSteps, reduction: Op, rw: Rewriter) -> Value:
    """The sum of a term, which the loop that makes the term makes now, too."""
    scan, part, end = found.scan, found.part, found.scan.body.terminator
    for mask in found.term.masks:
        for op in made_before(mask.predicate, scan) or ():
            rw.move(op, scan)
    masks, dtype = masks_of(found.term, scan, rw), reduction.result.dtype

    def summed(value: Value, before: Op) -> Value:
        return sum_of_term(found.within(value), masks, dtype, before, rw)

    if isinstance(part, Stack):
        row = summed(part.value, end)
        stacked = Stack(row, rw.new_value(rw.stacked_aval(row, scan.length)))
        rw.set_scan(scan, stacks=[*scan.stacks, stacked])
        return stacked.result
    terms = [summed(term, end) for term in part.terms]
    aval, init = terms[0].aval, part.carry.init
    first = rw.full(0, aval, before=scan) if uniform(init) == 0 else summed(init, scan)
    param, result = rw.new_value(first.aval), rw.new_value(first.aval)
    following = reduce(lambda a, b: rw.typed(lax.add, param.aval, a, b, before=end), terms, param)
    rw.set_scan(scan, carries=[*scan.carries, Carry(first, param, following, result)])
    return result


def drop(found: SummedInSteps, rw: Rewriter) -> None:
    """Take what a loop made for each row out of it."""
    scan, part = found.scan, found.part
    if isinstance(part, Stack):
        rw.set_scan(scan, stacks=[s for s in scan.stacks if s.result is not part.result])
        return
    kept = [carry for carry in scan.carries if carry.result is not part.carry.result]
    rw.set_scan(scan, carries=kept)
    for each in reversed(part.sums):
        rw.erase(each)
