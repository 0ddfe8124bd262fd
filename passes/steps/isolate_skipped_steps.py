"""Turn a step that may be skipped into a branch, so that nothing is stored for skipped steps.

Before::

    h_n, r = scan[n] carry(h=h_0) xs(x=xs) {
      p = lt t lengths                     # one predicate a row of the batch
      v = step(h, x)
      yield carry(select p v h) ys(v)
    }

After::

    h_n, r = scan[n] carry(h=h_0) xs(x=xs) {
      p = lt t lengths
      d, u = cond (reduce_or p) { v = step(h, x); yield select p v h, v } else { h, undefined }
      yield carry(d) ys(u)
    }

If a skipped step is a `select`, as under `vmap`, it is computed, and its residuals are stacked,
even if no row of the batch takes it. A branch can be skipped, its residuals are then unspecified,
and the loop may stop early.

Sound when

1. the scan skips under a predicate `p`: where `p` is false everywhere, every carry keeps its value;
2. whatever reads the stacked value reads it row by row, in loops that skip under the same predicate
   and whose stacks then do not depend on it, so that rows of skipped steps are never read;
3. a step has no effects and does not communicate; where XLA may insert collectives into it, all
   devices have the same predicate;
4. what a step of those loops makes of the row has no effects either, and terminates whatever the
   row holds;
5. a step of those loops that multiplies the skipped values by zeros, as a transposed one does, does
   not store the product: zero divided by zero is NaN. It becomes a branch as well, or, in a batch,
   what it stores is selected;
6. JAX does not differentiate the loops any more: it would multiply zeros by functions of the row.

In the last stages (`at_last`), when no pass looks at residuals any more, rows of skipped steps that
hold a kept carry become unspecified, too: a loop that stops early would have to fill them in. A
write into a buffer that a skipped step keeps moves after the branch: XLA would copy the buffer.

It fires only if a stack would otherwise keep the loop from stopping early, and not where XLA may
divide the rows of the batch over devices: they would communicate in every step. In a loop that is
not batched, steps that take longer than the predicate become branches before residuals are
optimised; or after `undo-carried-writes`, if that stores less, as it sees no writes in branches. In
a batch, steps that take hardly longer than asking may be left to `isolate-dropped-steps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxpr_opt.analysis.residuals.unread_rows import (
    is_by_zeros,
    kept_for_nobody,
    needed_row,
    readers,
    without_zeros,
)
from jaxpr_opt.analysis.residuals.versions import restored
from jaxpr_opt.analysis.steps.questions import is_asked_by_branch
from jaxpr_opt.analysis.steps.skipped_rows import SkippedRow, skipped_row
from jaxpr_opt.analysis.steps.skips import Skip, find_skip, find_skips, has_branch
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.builders.steps.skipped_steps import (
    into_branch,
    leave_unspecified,
    ops_of_branch,
    select_kept,
)
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import has_divided_rows
from jaxpr_opt.ir.graph import Op, Phase, Scan, Stack
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import can_move, may_depend_on


@dataclass(frozen=True, slots=True, eq=False)
class SelectedSteps(Match):
    """A scan that skips by selecting, and the stacks that a skipped step computes for nobody."""

    op: Scan
    skip: Skip
    stacks: tuple[Stack, ...]
    are_kept: bool = False
    """Whether these only hold what a skipped step keeps: it becomes no branch for them."""


@dataclass(frozen=True)
class IsolateSkippedSteps(Pass[SelectedSteps]):
    """Step that is computed and selected away -> branch."""

    predicates: Literal["scalars", "rows"] = "rows"
    """Which loops: those of one predicate a step, or of one for each row of a batch."""
    at_last: bool = False  # no pass looks at residuals any more

    name: ClassVar[str] = "isolate-skipped-steps"
    phase: ClassVar[Phase] = "differentiated"
    unspecified: ClassVar[bool] = True  # (6)
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[SelectedSteps]:
        for skip in _skips(op, self.predicates):  # (1)
            computed = tuple(_computed(skip))
            if computed or (self.predicates == "scalars" and _is_refilled(skip)):
                yield SelectedSteps(op, "a skipped step becomes a branch", skip, computed)
            elif self.at_last and (kept := tuple(kept_for_nobody(skip))):
                yield SelectedSteps(op, "rows of skipped steps are anything", skip, kept, True)

    def refuse(self, match: SelectedSteps) -> str | None:
        skip = match.skip
        if not all(map(can_move, skip.scan.body.ops)):  # (3)
            return "a step has effects or communicates"
        if not may_depend_on(skip.predicate, skip.scan.body.ops, skip.scan):  # (3)
            return "XLA may insert collectives into a step, so every device must run it"
        if has_divided_rows(skip.predicate, skip.scan):
            return (
                "XLA may divide the rows of its predicate over devices, which would ask each other"
            )
        if self.predicates == "scalars" and restored(skip.scan):
            return "writes to a buffer are undone first: a branch would hide them"
        for stack in match.stacks:
            if readers(stack, skip) is None:  # (2, 4)
                return f"{stack.result.name or stack.result.type} is read in skipped steps"
        if not all(map(_may_be_branch, _with_it(match)[0])):  # (3, 5)
            return "a step of a loop that reads its rows cannot become a branch"
        return None

    def rewrite(self, match: SelectedSteps, rw: Rewriter) -> None:
        branches, selecting = _with_it(match)
        if match.are_kept:
            leave_unspecified(match.skip, match.stacks, rw)
        for skip in branches if match.are_kept else (match.skip, *branches):
            into_branch(skip, rw)
        for skip in selecting:
            select_kept(skip, rw)


def _with_it(match: SelectedSteps) -> tuple[list[Skip], list[Skip]]:  # (5)
    """How loops skip whose steps must become branches, too, not to compute with what is left out;
    and those that must select what they keep, as branches would copy what a batch sums up.
    """
    found = _by_zeros(match)
    selecting = [each for each in found if _is_batch(match.skip, each)]
    return [each for each in found if each not in selecting], selecting


def _by_zeros(match: SelectedSteps) -> Iterable[Skip]:
    """How loops skip that multiply what is left out with zeros."""
    skip = match.skip
    computed = (s for s in skip.scan.stacks if needed_row(skip, s).is_unspecified)
    found = (readers(s, skip) or () for s in (match.stacks if match.are_kept else computed))
    return {each.scan: each for group in found for each in group if is_by_zeros(each)}.values()


def _is_batch(skip: Skip, other: Skip) -> bool:
    """Whether two loops are of a batch, and what the other writes in place it reads of no zeros."""
    plain = without_zeros(other)
    written = all(isinstance(plain[write.value], Splat) for write in other.blanks)
    return bool(skip.predicate.shape) and other.scan.source.transposed and written


def _may_be_branch(skip: Skip) -> bool:  # (3)
    """Whether the ops of a step may run in a branch."""
    ops = skip.scan.body.ops
    return all(map(can_move, ops)) and may_depend_on(skip.predicate, ops, skip.scan)


def _skips(scan: Scan, predicates: Literal["scalars", "rows"]) -> list[Skip]:
    """The ways in which a scan that stacks skips, under such predicates."""
    if not scan.stacks:
        return []
    is_asked = predicates == "scalars" or cost_model().asks_the_host
    if is_asked and not cost_model().is_worth_a_question(scan.body):
        return []
    if predicates == "rows":
        found = find_skip(scan)
        return [found] if found and found.predicate.shape and is_asked_by_branch(found) else []
    return [s for s in find_skips(scan) if isinstance(s, Skip) and s.predicate.shape == ()]


def _computed(skip: Skip) -> Iterator[Stack]:
    """The stacks of rows that a branch would leave out."""
    moved = {result for op in ops_of_branch(skip) for result in op.results}
    for stack in skip.scan.stacks:
        if stack.result.uses and stack.value in moved and isinstance(skipped_row(skip, stack), str):
            yield stack


def _is_refilled(skip: Skip) -> bool:
    """Whether a skipped step would stack for nobody what can be computed of what it keeps, and no
    branch of the predicate does that already.
    """
    return not has_branch(skip) and any(
        readers(stack, skip) is not None
        for stack in skip.scan.stacks
        if isinstance(row := skipped_row(skip, stack), SkippedRow) and row.ops
    )
