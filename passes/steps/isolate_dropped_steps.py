"""Turn steps of which nothing is used into branches, where a gradient is compiled as two programs.

Before, forward and backward::

    c_n, l, r = scan[n] carry(c=c_0) xs(t=iota, x=x) {
      p = lt t m
      d, v, u = step(c, x)
      yield carry(d) ys(select p v 0.0, u)        # nothing reads c_n
    }
    g = scan[n, reverse] carry(g=0.0) xs(t=iota, u=r, k=ct) { ...; select p k 0.0; ... }

After::

    c_n, l, r = scan[n] carry(c=c_0) xs(t=iota, x=x, i=iota) {
      d, v, u = cond (lt i m) { step(c, x) } else { c, 0.0, undefined }
      yield carry(d) ys(v, u)
    }
    g = scan[n, reverse] carry(g=0.0) xs(t=iota, u=r, k=ct, i=iota) { cond (lt i m) ... else { g } }

A mask drops the losses of steps after the end of a sequence, but not their state, or it keeps the
state, and the loop back adds cotangents of masked outputs to it. Such a step is not skipped by the
forward loop alone: only the forward and the backward loop together show that
nothing reads what it computes. Where both are compiled together, `exit-loop-early` sees that. Where
they are compiled apart, this pass turns the step into a branch in each loop, and each loop stops
early by itself. Sound when

1. `exit-loop-early` could stop both loops: nothing reads what the forward loop makes after the last
   step that is taken, and loops that read its rows do nothing before they come to such a step;
2. those loops run in reverse and read the rows one by one, from the last to the first;
3. JAX does not differentiate the loops any more: it would multiply zeros by functions of the rows
   that are left unspecified.

If only such loops read the rows, rows of skipped steps are unspecified. Otherwise the branch for
skipped steps computes them, and the forward loop does not stop.

Either it is known before the loop which steps are taken, or the loop counts them: once a step is
skipped, so are all after it.

Cost: the branch goes when the loops stop early. It fires if a step takes longer than asking whether
to go on, and the gradient is compiled as two programs. In a batch whose steps keep their carries
when skipped, and take hardly longer than testing all rows, only the loop back gets branches: the
forward loop asks before several steps at once, and counts those that are taken. It does not fire
if the loop back adds to windows of a large array: `vmap` would select that array, and XLA copy it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from jaxpr_opt.analysis.residuals.unread_rows import readers
from jaxpr_opt.analysis.steps.going_on import find_goings
from jaxpr_opt.analysis.steps.questions import (
    is_asked_by_branch,
    is_known_in_steps,
    is_read_by_rows,
    steps_a_question,
)
from jaxpr_opt.analysis.steps.skipped_rows import SkippedRow, skipped_row
from jaxpr_opt.analysis.steps.skips import Skip, find_ends, find_skip, has_branch
from jaxpr_opt.builders.steps.skipped_steps import into_branch, leave_unspecified
from jaxpr_opt.builders.steps.taken_steps import steps_taken
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Pass
from jaxpr_opt.ir.graph import Op, Phase, Scan, Stack
from jaxpr_opt.ir.nesting import program_of
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.passes.steps.exit_loop_early import ExitLoopEarly, SkippingLoop

EXIT = ExitLoopEarly()


@dataclass(frozen=True, slots=True, eq=False)
class DroppingLoop(SkippingLoop):
    """A loop of which steps are dropped; and the stacks of what only steps that are taken make, and
    how the loops skip that read them.
    """

    skip: Skip
    left_out: dict[Stack, tuple[Skip, ...]]


@dataclass(frozen=True)
class IsolateDroppedSteps(Pass[DroppingLoop]):
    """Steps whose results are dropped, forward and backward -> branches."""

    name: ClassVar[str] = "isolate-dropped-steps"
    phase: ClassVar[Phase] = "differentiated"
    unspecified: ClassVar[bool] = True  # (3)
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[DroppingLoop]:
        program = program_of(op)
        if op.reverse or program is None or not program.cotangents:
            return
        says = "steps of which nothing is used become branches, forward and backward"
        for skip in _skips(op):
            if left_out := _left_out(skip):
                yield DroppingLoop(op, says, skip, left_out)

    def refuse(self, match: DroppingLoop) -> str | None:
        if (reason := EXIT.refuse(match)) is not None:  # (1)
            return reason
        for stack, found in match.left_out.items():
            if not _is_read_back(stack, found):
                return f"{stack.result.label} is not read row by row"  # (2)
        return None

    def rewrite(self, match: DroppingLoop, rw: Rewriter) -> None:
        skip = match.skip
        left_out = _computed(skip) | match.left_out
        back = {each.scan: each for found in left_out.values() for each in found}
        taken = steps_taken(skip, rw)
        tells = skip.kind == "carried" or is_known_in_steps(skip)
        asked = None if tells else taken
        row_of = partial(_kept, left_out=left_out)
        some = into_branch(skip, rw, asked, row_of) if is_asked_by_branch(skip) else None
        leave_unspecified(skip, left_out, rw, some)
        for each in back.values():
            into_branch(each, rw, taken, _kept)


def _skips(scan: Scan) -> Iterator[Skip]:
    """The ways in which a loop drops steps; and skips them, if they are still no branches: a batch
    would ask each step, or a loop that reads its rows makes something of those of skipped steps.
    """
    if cost_model().is_worth_a_question(scan.body):  # `vmap` would make a select of a branch
        yield from (*find_ends(scan), *find_goings(scan))
    skip = find_skip(scan)
    if skip is not None and not has_branch(skip) and steps_a_question(scan, skip):
        yield skip


def _left_out(skip: Skip) -> dict[Stack, tuple[Skip, ...]]:
    """The stacks of what only steps that are taken make, and how the loops skip that read them."""
    stacks = [s for s in skip.scan.stacks if isinstance(skipped_row(skip, s), str)]
    return {stack: readers(stack, skip, ends=True) or () for stack in stacks}


def _computed(skip: Skip) -> dict[Stack, tuple[Skip, ...]]:
    """The stacks of what a skipped step would compute anew, and how the loops skip that read only
    the rows of steps that are taken.
    """
    rows = ((stack, skipped_row(skip, stack)) for stack in skip.scan.stacks)
    stacks = [stack for stack, row in rows if isinstance(row, SkippedRow) and row.value]
    found = ((stack, readers(stack, skip, ends=True) or ()) for stack in stacks)
    return {stack: each for stack, each in found if _is_read_back(stack, each)}


def _is_read_back(stack: Stack, found: tuple[Skip, ...]) -> bool:
    """Whether loops read a stack from its last row to the first."""
    return is_read_by_rows(stack, found) and all(each.scan.reverse for each in found)


def _kept(skip: Skip, stack: Stack, left_out: Container[Stack] = ()) -> SkippedRow:
    """The rows that a skipped step stacks, if they are known and read."""
    row = skipped_row(skip, stack)
    return SkippedRow() if isinstance(row, str) or stack in left_out else row
