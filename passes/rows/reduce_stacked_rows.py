"""Reduce over the steps of a loop in its steps, not what it has stacked.

Before::

    h, ys = scan[100] carry(h=h0) {
      h1 = f h
      yield carry(h1) ys(h1)
    }
    r = reduce_sum[axes=(0,)] ys

After::

    h, r = scan[100] carry(h=h0, r=0.0) {
      h1 = f h
      a = add r h1
      yield carry(h1, a)
    }

Weights of all steps are averaged, gradients of micro batches, samples of a chain; layers are mixed,
or the greatest number of all is taken; samples of a ray are blended. The stack is as long as the
loop, and is made for one row. Sound, up to rounding of sums, when

1. only reductions over the steps read the stack, or what is made of it row by row;
2. rows are combined one by one as all at once: numbers are chosen, added, or, if they are integers,
   multiplied; they are no less precise than float32, as sums of fewer bits lose some in each step;
3. what else is reduced with it is made of rows of that loop, of arrays that can be there before
   it, or is the same for each row;
4. an op rounds one row as it rounds many: no sums or products within a row;
5. in a loop that skips whole steps, rows of these change nothing: zeros that are added.

Cost: an op's start in each step, and a carry that is read and written as a row was. It fires only
if what is carried, and what is streamed anew, is at most half of the stack, and in the final phase:
a gradient reads rows, too. A loop of whose rows a mask drops the last ones stops early then.
Source: Polyak averages, jumping knowledge networks (Xu et al., arXiv:1806.03536), gradients of
micro batches by `lax.map`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.rows.reduced_stacks import ReducedStacks, first_of, reduced_stacks
from jaxpr_opt.analysis.steps.skips import Skip, find_skip
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.builders.rows.reduced_stacks import reduce_in_steps
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Phase, Scan, Stack, is_sized
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class ReducedRows(Match):
    """A stack, and reductions over its rows."""

    op: Scan
    stack: Stack
    found: ReducedStacks


@dataclass(frozen=True)
class ReduceStackedRows(Pass[ReducedRows]):
    """Reductions over what a loop stacks -> carries of what is reduced so far."""

    name: ClassVar[str] = "reduce-stacked-rows"
    phase: ClassVar[Phase] = "final"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Scan) -> Iterator[ReducedRows]:
        if not is_sized((op.length,)) or op.length < 2:
            return
        for stack in op.stacks:
            found = reduced_stacks(op, stack)  # (1, 2, 3, 4)
            if found is not None:
                size = bytes_text(stack.result.nbytes)
                says = f"rows are reduced in each step, {size} of them are not stacked"
                yield ReducedRows(op, says, stack, found, about=stack.result)

    def refuse(self, match: ReducedRows) -> str | None:
        scan, nbytes, needed = match.op, match.stack.result.nbytes, match.found.needed
        if cost_model().is_most(needed, nbytes):
            return "what is carried or streamed instead takes as much memory"
        saved = cost_model().kept(nbytes - needed, nbytes)
        if saved <= scan.length * cost_model().started(len(match.found.reductions)):
            return "starting the ops in each step takes as long as storing the rows"
        skip = find_skip(scan)
        if skip is not None and not _changes_nothing(skip, match.found):  # (5)
            return "the loop skips whole steps"
        return None

    def rewrite(self, match: ReducedRows, rw: Rewriter) -> None:
        reduce_in_steps(match.found, rw)


def _changes_nothing(skip: Skip, found: ReducedStacks) -> bool:  # (5)
    """Whether what a skipped step stacks is what reductions begin with, and they reduce only it."""
    stacked = {stack.result: stack.value for stack in found.scan.stacks}
    for op in found.reductions:
        row = stacked.get(op.operands[0])
        known = skip.skipped[row] if row is not None else None
        if not isinstance(known, Splat) or known.value != first_of(op):
            return False
    return True
