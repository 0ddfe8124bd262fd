"""Run a branch that updates a carried buffer as a loop of at most one step: XLA copies nothing.

Before::

    c_n = scan[n] carry(c=c_0) xs(i, k) {
      d = switch k {
        s = scatter c i 1.0
        yield s
      } {
        t = scatter-mul c i 0.5
        yield t
      } {
        yield c
      }
      yield carry(d)
    }

After::

    c_n = scan[n] carry(c=c_0) xs(i, k) {
      a = while carry(o=(eq k 0), c=c) { o } do { s = scatter c i 1.0; yield False, s }
      d = while carry(o=(eq k 1), a=a) { o } do { t = scatter-mul a i 0.5; yield False, t }
      yield carry(d)
    }

Queues, heaps and tables under a `lax.switch`; the transpose of a write under a `cond`, which reads
its cotangent and clears it. Where `write-after-branches` does not know of a branch what it writes,
or it writes several times, XLA copies the array into the branch. It updates the arrays of a loop in
place. Sound when

1. each branch yields the array as it was, or with windows written to it: one of the branches runs,
   and the loops of all others take no step;
2. the branches have no effects and do not communicate;
3. nothing differentiates the loop any more (the final phase).

Cost: a loop for each branch that computes something. Only in the step of a loop that carries the
array, if nothing reads it afterwards, and if XLA would copy it, which takes longer than that.
Source: measured; XLA's copy insertion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.carried.buffers import is_handed_on
from jaxpr_opt.analysis.carried.overwritten import is_read_late
from jaxpr_opt.analysis.in_place.buffers_in_branches import buffers, is_copied
from jaxpr_opt.analysis.values.enclosing import loop_body
from jaxpr_opt.builders.in_place.branches_in_turn import in_turn
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Phase, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import can_move


@dataclass(frozen=True, slots=True, eq=False)
class UpdatedInBranches(Match):
    """A cond, and the results that are buffers with windows written to them."""

    op: Cond
    arrays: dict[Outcome, Value]


@dataclass(frozen=True)
class WriteInBranches(Pass[UpdatedInBranches]):
    """Branches that update a buffer -> loops of at most one step."""

    name: ClassVar[str] = "write-in-branches"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"  # (3)
    anchors: ClassVar[tuple[type[Op], ...]] = (Cond,)

    def find(self, op: Cond) -> Iterator[UpdatedInBranches]:
        arrays = buffers(op) if loop_body(op) is not None else {}  # (1)
        large = [array for array in arrays.values() if self._is_copied(array, op)]
        if large:
            says = f"{large[0].label} is updated in place, in loops of at most one step"
            yield UpdatedInBranches(op, says, arrays, about=large[0], waste="copy")

    @staticmethod
    def _is_copied(array: Value, cond: Cond) -> bool:
        """Whether XLA copies an array, and that takes longer than loops in place of branches."""
        loops = cost_model().started(2 * len(cond.branches))
        return cost_model().outlasts(array.nbytes, loops) and is_copied(array, cond)

    def refuse(self, match: UpdatedInBranches) -> str | None:
        body = loop_body(match.op)
        assert body is not None
        if not can_move(match.op):  # (2)
            return "its branches have effects, or communicate"
        for outcome, array in match.arrays.items():
            if is_sharded(array):
                return f"{array.label} may be on several devices"
            if not is_handed_on(array, outcome.result, body):
                return f"{array.label} is not one buffer throughout the step"
            if is_read_late(array, match.op):
                return f"{array.label} is read afterwards, so XLA would copy it"
        return None

    def rewrite(self, match: UpdatedInBranches, rw: Rewriter) -> None:
        in_turn(match.op, match.arrays, rw)
