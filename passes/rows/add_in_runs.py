"""Add numbers at places that move on from step to step as runs, not one by one.

Before::

    w = scan[600] carry(c=0, w=w0) {
      i = sub c const                  # i[p] = step - p
      j = select_n (lt i 0) i (add i 600)
      w1 = scatter-add w j u           # one number to each place
      ...
    }

After::

    w = scan[600] carry(c=0, w=w0) xs(step=...) {
      r = concatenate z (rev u) z
      a = dynamic_slice r (1198 - step)         # those with i >= 0
      b = dynamic_slice r (598 - step)          # the others
      w1 = add (add w a) b
      ...
    }

A scatter finds the place of each number by itself. Where a step's places are those of the step
before, moved on, they are few runs of consecutive places, even if they wrap around or are dropped:
each run is moved to its place as a whole, and added. The gradient of a read of ``w[(t - s) % n]``
has such a scatter. Sound when

1. the scatter is in a step of a loop;
2. the array has one axis, and single numbers are added to it;
3. the places are known before the program runs: what is out of range is dropped, not clamped;
4. along the numbers of all steps, places go up by one, or all down, but for a few jumps. The runs
   are added one after the other, in the order of the numbers, so that each sum is the same; but
   zeros are added to all other places, so that a negative zero becomes a positive one.

Cost: for each run one sum of arrays, and the numbers among as many zeros as they may move, for a
place that is looked up for each number. Rows of several numbers are moved as quickly one by one.
Source: the transpose of `compute-shifted-rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.rows.added_runs import AddedRuns, added_runs
from jaxpr_opt.builders.rows.added_runs import add_runs
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Phase
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class InRuns(Match):
    """A scatter that adds runs of numbers."""

    found: AddedRuns


@dataclass(frozen=True)
class AddInRuns(Pass[InRuns]):
    """Scatter of numbers at places that move on in each step -> sums of arrays."""

    name: ClassVar[str] = "add-in-runs"
    phase: ClassVar[Phase] = "final"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"scatter-add"})

    def find(self, op: Op) -> Iterator[InRuns]:
        found = added_runs(op) if op.result.uses else None  # (1-4)
        if found is not None:
            yield InRuns(
                op, f"numbers added in runs of consecutive places: {len(found.runs)}", found
            )

    def refuse(self, match: InRuns) -> str | None:
        array, _, numbers = match.op.operands
        if not cost_model().is_less_in_runs(array, numbers, len(match.found.runs)):
            return "adding whole arrays takes no less time"
        return None

    def rewrite(self, match: InRuns, rw: Rewriter) -> None:
        rw.replace(match.op.result, add_runs(match.found, rw))
        rw.erase(match.op)
