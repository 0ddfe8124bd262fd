"""Divide a loop that stores residuals, and the loops that read them, where what it chooses changes.

Before::

    c, r = scan[n] carry(c=x) xs(i=iota) {
      p = lt i k
      d, e = cond p { f c } else { g c }
      yield carry(d) ys(e)
    }
    a = scan[n, reverse] carry(a=y) xs(i=iota, e=r) {
      b = cond (lt i k) { f_t a e } else { g_t a e }
      yield carry(b)
    }

After::

    c, r = scan[k] carry(c=x) { d, e = f c; yield carry(d) ys(e) }
    d, s = scan[n-k] carry(d=c) { d, e = g c; yield carry(d) ys(e) }
    a = scan[n-k, reverse] carry(a=y) xs(e=s) { b = g_t a e; yield carry(b) }
    b = scan[k, reverse] carry(b=a) xs(e=r) { b = f_t a e; yield carry(b) }

Choices that come round, as ``t % 5 == 0``, become a loop of rounds around the loops of their
pieces; steps after the last round are loops of their own. Sound when

1. residuals are read row by row only, by loops of as many steps in the same region;
2. the number of each choice in each step is known before the program runs: it is computed from the
   number of the step, from captured arrays, and from counters, and is the same in all steps of a
   piece;
3. a product with a zero is taken for zero if it is a cotangent, and in loops that JAX made by
   transposing only: its own zeros are symbolic;
4. the loop does not ask to be unrolled: of a round, it would be another loop that is.

The steps are the same, in the same order, with their effects.

Cost: each piece is compiled by itself, so they are few. Fires where a piece does not compute, or
does not store, what takes longer than the loops that are more, and than joining what they stack
apart from residuals. A loop that may stop early is left to the passes for those.
Source: index set splitting (Banerjee, 1979; Wolfe, "High Performance Compilers", 9.2), and loop
peeling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.phases import Division, Phases, divided, phases_of
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.bridge.parameters import unroll_of
from jaxpr_opt.builders.steps.pieces import divide, split_off
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import Op, Scan
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Divided(Match):
    """A loop of whose steps it is known what they choose."""

    op: Scan
    phases: Phases


@dataclass(frozen=True)
class SplitPhases(Pass[Divided]):
    """A loop that chooses by the number of its step -> a loop for each choice."""

    name: ClassVar[str] = "split-phases"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    after: ClassVar[tuple[After, ...]] = (
        After("drop-dummy-residuals", "what a branch leaves undefined need not be stored"),
    )

    def find(self, op: Scan) -> Iterator[Divided]:
        found = phases_of(op)
        if found is not None:
            yield Divided(op, _says(found.division, op.length), found)

    def refuse(self, match: Divided) -> str | None:
        scan = match.op
        loops = (scan, *match.phases.replay.readers)
        if any(unroll_of(loop) != 1 for loop in loops):
            return "the scan asks to be unrolled"  # (4)
        if any(find_skip(loop) is not None for loop in loops):
            return "the loop may stop early"
        return None

    def rewrite(self, match: Divided, rw: Rewriter) -> None:
        found, division = match.phases.replay, match.phases.division
        known = match.phases.known
        if division.rest:
            # The rest are the last rows: of a loop in reverse, the first steps.
            found = split_off(found, division.rest, rw, first=found.scan.reverse)
            known = divided(found, division).known
        divide(found, division, rw, known)


def _says(division: Division, length: int) -> str:
    pieces = " and ".join(map(str, division.lengths))
    if division.rounds == 1:
        return f"{length} steps become loops of {pieces}, in each of which choices stay the same"
    return f"{length} steps become {division.rounds} rounds of {pieces}, as choices come round"
