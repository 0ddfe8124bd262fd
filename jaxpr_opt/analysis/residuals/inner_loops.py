"""Loops within the step of a loop that may stop early, and the residuals that come of their stacks.

The loop around such a loop stores a row for each step of the inner loop's bound, in each of its own
steps, however few steps are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpr_opt.analysis.residuals.cuts import Cut, Residual, cut, hidden, outermost, residuals
from jaxpr_opt.analysis.residuals.replays import may_skip_others
from jaxpr_opt.analysis.residuals.stack_consumers import paired, routes
from jaxpr_opt.analysis.steps.questions import is_asked_for_sure
from jaxpr_opt.analysis.steps.skips import Skip, find_skip, has_branch
from jaxpr_opt.analysis.values.rounding import is_discontinuous
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import backward_slice, depending_on, inputs
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Scan, Value, While


@dataclass(frozen=True, slots=True, eq=False)
class InnerLoop:
    """A loop in the step of `scan`, and what that stores of the inner loop's stacks."""

    scan: Scan
    skip: Skip
    residuals: tuple[Residual, ...]
    path: tuple[Op, ...]
    """The inner loop, and what makes the residuals of its stacks, in order."""

    @property
    def loop(self) -> Scan:
        """The inner loop."""
        return self.skip.scan

    @property
    def old_bytes(self) -> int:
        """Bytes of what is stored."""
        return sum(stack.result.nbytes for stack, _ in self.residuals)

    @property
    def marked(self) -> int:
        """Bytes that say which steps have been taken."""
        return self.skip.predicate.nbytes * self.loop.length * self.scan.length


@remembered
def inner_loops(scan: Scan) -> tuple[InnerLoop, ...]:
    """The loops in the step of a loop that stop for good, and whose stacks it stores."""
    skips = [find_skip(op) for op in scan.body.ops if isinstance(op, Scan)]
    found = [_stored(scan, skip) for skip in skips if skip is not None and skip.kind == "carried"]
    return tuple(each for each in found if each is not None)


def _stored(scan: Scan, skip: Skip) -> InnerLoop | None:
    """The part of one loop's stacks that is stored; None if none is."""
    rows = {stack.result for stack in skip.scan.stacks if _may_be_made_again(stack.value, skip)}
    made = depending_on(rows, (op for op in scan.body.ops if not _is_given(op)))
    found = tuple(
        (stack, value)
        for stack, value in residuals(scan, nests=True)
        # Condition 1 of replay-inner-loops.
        if value in rows or value.op in made
        if all(paired(scan, route) for route, _ in routes(stack.result, nests=True) or ())
    )
    if not found:
        return None
    path = backward_slice(
        [value for _, value in found], lambda v: v.op is not skip.scan and v.op not in made
    )
    return InnerLoop(scan, skip, found, tuple(path))


def _may_be_made_again(value: Value, skip: Skip) -> bool:
    """Whether a row of the inner loop may come of a replay: not if it says which steps are
    taken, as one that was skipped might be transposed as one that was taken.
    """
    # Condition 3 of replay-inner-loops.
    return value is not skip.predicate and not may_skip_others(value, skip)


def _is_given(op: Op) -> bool:
    """Whether what an op makes of the stacks is not made again: the other loops stop where they
    stopped, and a comparison says what it said.
    """
    # Condition 3 of replay-inner-loops.
    return isinstance(op, Scan | While) or is_discontinuous(op)


def cut_before(loop: Scan, path: Sequence[Op], found: Sequence[Residual]) -> Cut:
    """Stores what the inner loop and its path read, or what the step starts with: whichever costs
    less.
    """
    scan = loop.parent
    assert isinstance(scan, Scan)
    here = set(path)
    read = {v for op in path for v in inputs(op) if v.op not in here}

    def is_given(value: Value) -> bool:
        return value.op is not None and value.op is not loop and _is_given(value.op)

    cuts = (cut(scan, found, keep) for keep in (read.__contains__, is_given))
    known = [each for each in cuts if each is not None]
    assert known, "what the path reads is of the step"
    return min(known, key=lambda each: seconds(loop, each))


def seconds(loop: Scan, made: Cut) -> float:
    """Seconds of a step that stores what the cut stores and recomputes the rest.  The inner loop
    counts as one step if it stops early, else as all of its steps.
    """
    model, scan = cost_model(), loop.parent
    assert isinstance(scan, Scan)
    outer = sum(v.nbytes for v in hidden(scan, outermost(scan, made.residuals), made.ops))
    stored = model.stored(made.new_bytes + outer) / scan.length
    steps = 1 if _is_stopped(loop) else loop.length
    others = model.run(op for op in made.ops if op is not loop)
    return stored + others + steps * model.run(loop.body.ops)


def _is_stopped(loop: Scan) -> bool:
    """Whether a loop that skips is left early: a branch says so, or asking is worth it."""
    skip = find_skip(loop)
    return skip is not None and (has_branch(skip) or is_asked_for_sure(loop, skip))
