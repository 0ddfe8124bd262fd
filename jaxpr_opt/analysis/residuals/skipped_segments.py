"""Segments of a loop that may stop early: each starts with carries that are kept, and is skipped as
a whole if its first step is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxpr_opt.analysis.residuals.replayed_steps import first_storing, replayed_cut
from jaxpr_opt.analysis.residuals.replays import Replay, replay
from jaxpr_opt.analysis.steps.masks import is_told
from jaxpr_opt.analysis.steps.questions import is_asked_each_step
from jaxpr_opt.analysis.steps.skips import Skip, find_skip, find_skips, has_branch
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.segments import LOOPS_OF_A_SEGMENT, ReplayedSteps
from jaxpr_opt.ir.devices import is_divided
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.traits import can_move, may_depend_on


@dataclass(frozen=True, slots=True, eq=False)
class SkippedSegments:
    """A loop whose steps are replayed, and how it is divided."""

    replay: Replay
    storing: int
    """How many of its first steps go on storing."""
    length: int
    """Of the segments of the other steps."""
    nbytes: int
    """What the carries of segments take, and the residuals of one."""


@remembered
def skipped_segments(scan: Scan) -> SkippedSegments | None:
    """The segments of a loop that may stop early, where they take less than what replays single
    steps; None if there are none.
    """
    model, found = cost_model(), replay(scan)
    if model.is_traded or found is None or is_divided(scan) or guards(found) is None:
        return None
    full = replayed_cut(scan) if found.why_not() is None else None
    if full is None:
        return None
    stored = first_storing(found, found.stacked, full.replay_seconds)
    if stored == scan.length:
        return None
    length = ReplayedSteps(scan.length - stored, found.carried, found.stacked).smallest(model)
    count = (scan.length - stored) // length
    if length < 2 or count < 2:
        return None
    nbytes = count * found.carried + length * found.stacked
    saved = model.filled(min(found.carried, found.stacked) * count * length - nbytes)
    worth = min(saved, length * full.replay_seconds)
    if not model.is_worth_loops(LOOPS_OF_A_SEGMENT, worth):
        return None
    return SkippedSegments(found, scan.length - count * length, length, nbytes)


def guards(found: Replay) -> Mapping[Scan, Skip] | None:
    """How a loop that stops for good skips, and the loops that read its residuals, which take its
    first steps; None if another stack than residuals would hold what skipped steps compute.
    """
    scan, skip = found.scan, find_skip(found.scan)
    # Condition 4 of replay-segments.
    if skip is None or skip.kind != "carried" or skip.predicate.shape or scan.reverse:
        return None
    if not has_branch(skip) and not is_asked_each_step(skip):
        return None  # steps are too cheap to skip: all would be replayed
    known = {scan: skip}
    for reader in found.readers:
        ways = (each for each in find_skips(reader) if isinstance(each, Skip))
        # Condition 5 of replay-segments.
        read = next(
            (each for each in ways if is_told(each) and not _is_replayed(each, found)), None
        )
        if read is None:
            return None
        known[reader] = read
    told = {*(stack.value for stack in found.stacks), *found.told}
    for loop, each in known.items():
        # Condition 2 of replay-segments.
        if not all(map(can_move, loop.body.ops)):
            return None
        # Condition 2 of replay-segments.
        if not may_depend_on(each.predicate, loop.body.ops, loop):
            return None
        # Condition 6 of replay-segments.
        if each.counters or each.blanks:
            return None
        for stack in loop.stacks:
            row = each.skipped[stack.value]
            # Condition 6 of replay-segments.
            if not isinstance(row, Splat) and (loop is not scan or stack.value not in told):
                return None
    return known


def _is_replayed(reader: Skip, found: Replay) -> bool:
    """Whether the predicate of a loop that reads residuals is one of them that is made again."""
    stream = reader.scan.stream_of(reader.predicate)
    return stream is not None and any(
        stack.result is stream.operand and stack.value not in found.told for stack in found.stacks
    )
