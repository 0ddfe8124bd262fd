"""Values that a loop stacks or adds up for each row of a batch, and that are then summed over the
batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from jaxpr_opt.analysis.batches.batch_sums import Term
from jaxpr_opt.analysis.rows.row_readers import made_before
from jaxpr_opt.analysis.values.accumulators import Accumulator, accumulators
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Scan, Stack, Value


@dataclass(frozen=True, slots=True, eq=False)
class SummedInSteps:
    """A term that a loop makes step by step, and that may be summed up in each step."""

    term: Term
    scan: Scan
    part: Accumulator | Stack

    @property
    def spared(self) -> int:
        """Bytes that a step no longer writes."""
        part = self.part
        row = part.value if isinstance(part, Stack) else part.carry.param
        rows = prod(row.shape[a] for a in self.within(row).summed)
        return int(row.nbytes - row.nbytes // max(rows, 1))

    def within(self, value: Value) -> Term:
        """The term that a value of a step is."""
        if not isinstance(self.part, Stack):
            return replace(self.term, array=value, moves=())
        masks = tuple(
            replace(mask, axes=tuple(axis - 1 for axis in mask.axes)) for mask in self.term.masks
        )
        summed = tuple(axis - 1 for axis in self.term.summed)
        return Term(value, summed, masks)


def summed_in_steps(term: Term, reduction: Op) -> SummedInSteps | None:
    """The loop that makes a term step by step; None if it cannot sum it up."""
    scan = term.array.op
    if not isinstance(scan, Scan) or scan.region is not reduction.region:
        return None
    # Condition 1 of sum-in-steps.
    if len(term.array.uses) > 1:
        return None
    # Condition 3 of sum-in-steps.
    if any(made_before(mask.predicate, scan) is None for mask in term.masks):
        return None
    stacked = next((stack for stack in scan.stacks if stack.result is term.array), None)
    if stacked is not None:
        axes = {*term.summed, *(axis for mask in term.masks for axis in mask.axes)}
        # Condition 2 of sum-in-steps.
        return None if 0 in axes else SummedInSteps(term, scan, stacked)
    dtype = term.array.dtype
    # Condition 4 of sum-in-steps.
    if dtype != reduction.result.dtype or dtypes.is_half(dtype):
        return None
    found = _accumulators(scan).get(term.array)
    if found is None or not found.terms:
        return None
    # Condition 1 of sum-in-steps.
    if any(each.shape != term.array.shape for each in found.terms):  # a number has no rows
        return None
    return SummedInSteps(term, scan, found)


@remembered
def _accumulators(scan: Op) -> dict[Value, Accumulator]:
    assert isinstance(scan, Scan)
    return {found.carry.result: found for found in accumulators(scan)}
