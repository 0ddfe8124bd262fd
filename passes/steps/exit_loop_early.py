"""Stop a scan whose remaining steps do nothing.

Before::

    c_n, r = scan[n] carry(c=c_0) {
      p = lt c bound
      d = cond p { step(c) } else { c }
      yield carry(d) ys(c)
    }

After::

    i_n, c_n, b = while carry(i=0, c=c_0, b=undefined) { and (lt i n) (lt c bound) } {
      d = step(c)
      yield add i 1, d, write b[i] c
    }
    r = select(iota < i_n, b, c_n)          # where rows of skipped steps are no one number: with
                                            # that the buffer starts

If only loops that stop as early read the rows, they stop at the same step, and rows of skipped
steps stay unspecified. A scan in reverse *starts* at the last step that is taken.

Sound when

1. a skipped step keeps the value of every carry, apart from counters;
2. the predicate is computed from carries that are kept, so that it stays false; or from streams,
   counters and outer values: then the number of steps is computed before the loop, and the last
   step taken ends it. In the second case the cond stays in the body, for skipped steps before that
   one, unless no element that is false becomes true again, as in `t < lengths`;
3. the predicate has no effects and terminates, and a skipped step has no effects. If devices may
   wait for each other in a step (it has a collective, or XLA may insert one), all of them have the
   same predicate;
4. what a skipped step stacks is unspecified, or computed from kept carries and outer values, or
   from the predicate;
5. nothing differentiates the loop any more (the final phase): a `while` has no transpose;
6. predicates that are computed before the loop, all at once, round as in each step: they are basic
   arithmetic, comparisons and logic, and compare no sums of products
   (`jaxpr_opt.analysis.values.rounding`);
7. rows of skipped steps stay unspecified only if all readers are loops that this pass stops before
   they come to such a row, or transposed loops whose carries stay as they began while they read
   rows of skipped steps, whatever their own predicates are;
8. a carry may change in skipped steps (against 1) if that does not count. Either nothing reads it
   after the loop, and the predicate does not depend on it. Or the loop runs in reverse, its
   predicates are known before it, and the carry is still the number that it began with, as a
   cotangent is zero, of either sign, before the first step taken. A mask that drops the loss of a
   step, but not its state, leads to both;
9. a loop that asks before several steps at once runs the skipped ones among them as they were; how
   many these are divides the number of all steps, and is a multiple of those that run unrolled;
10. another loop, whose results only this one reads, row by row, makes only as many rows as this one
    reads, if it runs forward, no row tells which steps are taken, (3) holds, and nothing in it goes
    on (11);
11. carries that skipped steps change may *go on* if the predicate does not read them: a second
    loop does to them what the steps after the last one taken do, or, before a loop in reverse, what
    those before the first one taken do;
12. the second loop takes one step if another would change nothing: its step computes from kept
    carries and outer values only, or adds zeros or NaNs made of these, or takes a maximum, selects
    or writes what is made of these;
13. a skipped step may keep a carry because zero times a finite number is zero, of either sign.
    Random numbers are. When the loop stops, or before one in reverse, on one device, the program
    computes how large others may be in skipped steps; if one is not finite, it takes these, too;
14. a row of a stream counts as zero in steps for which a mask before the loop made it so, if that
    mask and the predicate say the same of each row; also if finite numbers multiplied it since.

A batch that XLA may divide over devices is left, and so are steps cheaper than their predicate.
Source: jax#8239, jax#2469; Equinox's `bounded` while loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.unread_rows import feeders, readers
from jaxpr_opt.analysis.steps.factors import why_not_asked
from jaxpr_opt.analysis.steps.first_taken import rows_below
from jaxpr_opt.analysis.steps.going_on import find_goings
from jaxpr_opt.analysis.steps.questions import (
    is_counted,
    rounds_alike,
    skipped_at_the_end,
    steps_a_question,
    steps_asked_at_once,
)
from jaxpr_opt.analysis.steps.skipped_rows import SkippedRow, skipped_row
from jaxpr_opt.analysis.steps.skips import Skip, find_ends, find_factors, find_skips
from jaxpr_opt.builders.steps.early_exit import Plan, stop_early
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import has_divided_rows
from jaxpr_opt.ir.graph import Op, Phase, Scan, Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import may_depend_on, may_skip_steps


@dataclass(frozen=True, slots=True, eq=False)
class SkippingLoop(Match):
    """A scan that skips, or the reason why a predicate of it is not one to stop at."""

    op: Scan
    skip: Skip | str


@dataclass(frozen=True)
class ExitLoopEarly(Pass[SkippingLoop]):
    """Scan that skips its last steps -> while loop that stops."""

    name: ClassVar[str] = "exit-loop-early"
    phase: ClassVar[Phase] = "final"  # (5)
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[SkippingLoop]:
        for skip in (*find_skips(op), *find_ends(op), *find_goings(op), *find_factors(op)):
            if steps_a_question(op, skip) is None and steps_asked_at_once(op) is not None:
                continue
            what = f"{'starts at' if op.reverse else 'stops after'} the last step taken"
            yield SkippingLoop(op, f"a loop of at most {op.length} steps {what}", skip)

    def refuse(self, match: SkippingLoop) -> str | None:
        return self._refuse(match, knows_steps=False)

    def _refuse(self, match: SkippingLoop, knows_steps: bool) -> str | None:
        """The reason against it; if `knows_steps`, the steps are known without its predicates."""
        skip, scan = match.skip, match.op
        if isinstance(skip, str):  # (1, 2)
            return skip
        if (reason := _why_run(skip, knows_steps)) is not None:
            return reason
        if not may_depend_on(skip.predicate, scan.body.ops, scan):  # (3)
            return "a step has collectives, or XLA may insert some, so every device must run it"
        if has_divided_rows(skip.predicate, scan):
            return (
                "XLA may divide the rows of its predicate over devices, which would ask each other"
            )
        if not may_skip_steps(scan):  # (3)
            return "a step has effects"
        if skip.products and (reason := why_not_asked(skip)) is not None:  # (13)
            return reason
        if not knows_steps and skip.kind == "upfront" and rows_below(skip) is None:
            if not rounds_alike(skip):  # (6)
                return "its predicates may round differently when computed all at once"
            if not cost_model().is_worth_questions(scan.body, skip.predicate, skip.slice):
                return "all its predicates take about as long as its steps"
        rows = {stack.result: skipped_row(skip, stack) for stack in scan.stacks}
        wrong = {stacked: row for stacked, row in rows.items() if isinstance(row, str)}
        unread = self._unread(skip)[1] if wrong else frozenset()
        return next((row for v, row in wrong.items() if v not in unread), None)  # (4, 7)

    def rewrite(self, match: SkippingLoop, rw: Rewriter) -> None:
        assert isinstance(match.skip, Skip)
        every = steps_a_question(match.skip.scan, match.skip) or 1
        with_it, unread = self._unread(match.skip)
        counted = {each.scan for each in with_it if is_counted(each, match.skip)}
        asked = cost_model().steps_a_question
        feeding = [s for s in feeders(match.skip) if asked(s.body) <= every]  # (10)
        steps = stop_early(Plan(match.skip, every, unread=unread, feeders=feeding), rw)
        for each in with_it:
            stop_early(Plan(each, every, steps if each.scan in counted else None), rw)

    def _unread(self, skip: Skip) -> tuple[list[Skip], Set[Value]]:  # (7)
        """How loops skip that stop as early, and the stacks that only these read."""
        stops: dict[Scan, Skip] = {}
        unread: set[Value] = set()
        for stack in skip.scan.stacks:
            row = skipped_row(skip, stack)
            if isinstance(row, SkippedRow) and row.value is None:
                continue
            if found := self._stopping(stack, skip, stops):
                stops |= {each.scan: each for each in found}
                unread.add(stack.result)
        return list(stops.values()), unread

    def _stopping(
        self, stack: Stack, skip: Skip, stops: Mapping[Scan, Skip]
    ) -> tuple[Skip, ...]:  # (7)
        """The loops that read the rows of a stack, if the pass stops them all."""
        found = readers(stack, skip, ends=True) or ()
        return found if all(self._stops(each, skip, stops) for each in found) else ()

    def _stops(self, other: Skip, skip: Skip, stops: Mapping[Scan, Skip]) -> bool:  # (7)
        """Whether the pass stops a loop that reads rows, by this predicate."""
        if other.scan in stops:
            return stops[other.scan].predicate is other.predicate
        if other.gives_any(skip.scan.results) or steps_a_question(other.scan, other) is None:
            return False
        return self._refuse(SkippingLoop(other.scan, "", other), is_counted(other, skip)) is None


def _why_run(skip: Skip, knows_steps: bool) -> str | None:
    """Why all steps of a loop are to be run."""
    if skip.scan.length < 2:
        return f"the loop has {skip.scan.length} steps only"
    left, length = None if knows_steps else skipped_at_the_end(skip), skip.scan.length
    if left is not None and not cost_model().is_visible(left, length):
        return f"it skips {left} of its {length} steps only"
    return "it asks to be unrolled" if steps_asked_at_once(skip.scan) is None else None  # (9)
