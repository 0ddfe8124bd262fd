"""Store the carries of every k-th step only, and recompute the steps between them in the loop that
reads their residuals.

Before::

    c_n, r = scan[n] carry(c=c_0) xs(x=xs) { d = f c x; yield carry(d) ys(c) }
    a_n = scan[n, reverse] carry(a=a_0) xs(v=r) { b = g a v; yield carry(b) }

After::

    c_n, s = scan[n/k] carry(c=c_0) xs(xk=reshape xs) {
      d = scan[k] carry(c=c) xs(x=xk) { d = f c x; yield carry(d) }
      yield carry(d) ys(c)
    }
    a_n = scan[n/k, reverse] carry(a=a_0) xs(c=s, xk=reshape xs) {
      rk = scan[k] carry(c=c) xs(x=xk) { d = f c x; yield carry(d) ys(c) }
      b = scan[k, reverse] carry(a=a) xs(v=rk) { b = g a v; yield carry(b) }
      yield carry(b)
    }

The inner loops that read the residuals are such a pair again, so more levels are the same rewrite.
If k does not divide n, the remaining steps, the last ones, are loops of their own that pass their
residuals as before. Segments of one step are no loops: the step starts from its carries where its
residuals are read.

Sound when

1. the residuals are read row by row only, by loops in the same region as the one that stacks them;
2. what they depend on in a step has no effects and does not communicate: it is computed once more.
   Random keys are data, and come out the same;
3. the steps that were taken are taken again, and no other: a loop that skips steps is told which by
   their predicates, which are stored, a truth value for each step. Computed again, a comparison of
   what XLA may round otherwise might say something else (condition 4 of `replay-steps`), so nothing
   is computed again that is compared with its own maximum, either (condition 5 there).

Where XLA may divide arrays over devices, nothing changes: the reshaped axis may be the divided one.

A loop that may stop early, and would replay single steps (`replay-steps`), stacks their carries up
to its bound. In segments it stacks fewer, and no step is computed more often. Each segment becomes
a branch, also of the loop that reads residuals::

    d = cond p { scan[k] carry(c=c) { ... } } else { c }

It is sound when, in addition,

4. the loop runs forward, and its predicate depends on carries that a skipped step keeps: a segment
   whose first step is skipped does nothing;
5. each loop that reads its residuals knows by a step's number, or by a row of truth values, whether
   it takes the step, so that a segment can ask for all of its steps;
6. a skipped segment leaves carries alone, and what it stacks is one number.

Cost: segments of a loop that stops early have the length that takes the least memory. Filling what
they save takes longer than four more loops, and so do the steps of a segment. The first steps store
their residuals, as those of `replay-steps` do. Other loops are divided only if memory has a price
(`optimize(memory=...)`). Then the lengths of the segments and the number of levels minimise the
price of the stored bytes plus the seconds of the recomputed steps.
Source: Griewank and Walther, "Evaluating Derivatives", ch. 12; jax#2139.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.cuts import Cut, cut, residuals
from jaxpr_opt.analysis.residuals.replays import Replay, replay
from jaxpr_opt.analysis.residuals.skipped_segments import (
    SkippedSegments,
    guards,
    skipped_segments,
)
from jaxpr_opt.builders.residuals.recomputed_residuals import make_cut
from jaxpr_opt.builders.steps.pieces import in_two
from jaxpr_opt.cost.known_seconds import known_seconds
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.segments import ReplayedSteps
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Scan
from jaxpr_opt.ir.nesting import runs
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.memory.segments import replay_in_segments
from jaxpr_opt.sizes import binary_text


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedSegments(Match):
    """A loop whose residuals are to be computed again, in segments of so many steps."""

    op: Scan
    replay: Replay
    length: int
    skipped: SkippedSegments | None = None
    """Where the loop may stop early: its segments, each a branch."""


@dataclass(frozen=True)
class ReplaySegments(Pass[ReplayedSegments]):
    """Residuals of a loop -> the carries of every k-th step, and the steps replayed."""

    name: ClassVar[str] = "replay-segments"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[ReplayedSegments]:
        if (skipped := skipped_segments(op)) is not None:
            kept = binary_text(skipped.nbytes)
            says = f"steps are replayed in segments of {skipped.length}, so that they keep {kept}"
            yield ReplayedSegments(op, says, skipped.replay, skipped.length, skipped)
            return
        found = replay(op) if cost_model().byte and op.length > 1 else None
        length = None if found is None else _length(found)
        if found is None or length is None:
            return
        kept = binary_text(found.carried * (op.length // length))
        of = "one step" if length == 1 else f"{length} steps"
        says = f"residuals of {of} at a time are computed again from {kept} of carries"
        largest = max(found.stacks, key=lambda stack: stack.value.nbytes)
        yield ReplayedSegments(op, says, found, length, at=largest.value.op, about=largest.result)

    def refuse(self, match: ReplayedSegments) -> str | None:
        if match.length == 1 and _cut(match.replay) is None:
            return "the loop stores nothing but its carries"
        return match.replay.why_not()  # (2, 3)

    def rewrite(self, match: ReplayedSegments, rw: Rewriter) -> None:
        if match.skipped is not None:
            found: Replay | None = match.replay
            if match.skipped.storing:
                _, others = in_two(match.replay, match.skipped.storing, rw)
                found = replay(others)
            assert found is not None
            skips = guards(found)
            assert skips is not None
            replay_in_segments(found, match.length, rw, skips)
            return
        full = _cut(match.replay) if match.length == 1 else None
        if full is not None:
            make_cut(match.replay.scan, full, rw)
        else:
            replay_in_segments(match.replay, match.length, rw)


def _length(found: Replay) -> int | None:
    """The length of the segments that cost least; None if what is stored does."""
    scan, model = found.scan, cost_model()
    step = known_seconds(found.ops, model) + model.loop_seconds(1, found.carried + found.stacked)
    seconds = runs(scan) * scan.length * len(found.readers) * step
    steps = ReplayedSteps(scan.length, found.carried, found.stacked, found.streamed)
    return steps.segment(seconds, model)


def _cut(found: Replay) -> Cut | None:
    """The cut at the inputs of a step; None if nothing is computed again from there."""
    return cut(found.scan, residuals(found.scan), keep=found.told.__contains__)  # (3)
