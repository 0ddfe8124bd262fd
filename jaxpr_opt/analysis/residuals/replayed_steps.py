"""Which steps of a loop that skips are replayed in the loop back, and which store."""

from __future__ import annotations

from jaxpr_opt.analysis.residuals.cuts import Cut, cut, residuals
from jaxpr_opt.analysis.residuals.replays import (
    Replay,
    compared_rows,
    compares_again,
    may_skip_others,
    replay,
)
from jaxpr_opt.analysis.residuals.stack_consumers import Rows, routes
from jaxpr_opt.analysis.steps.skips import Skip, find_skip
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.devices import is_divided
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Scan, Value


@remembered
def replayed_cut(scan: Scan) -> Cut | None:
    """The cut at the inputs of a step of a loop that skips; None if there is none."""
    found, skip = residuals(scan), find_skip(scan)
    # Condition 1 of replay-steps.
    if not found or skip is None:
        return None
    rows = {row: v for stack, v in found for _, row in routes(stack.result) or ()}
    kept = {
        value
        for _, value in found
        # Conditions 4, 5 of replay-steps.
        if may_skip_others(value, skip) or compares_again(_slice(value, scan), scan)
    }
    kept |= compared_rows(rows, scan)  # condition 5 of replay-steps
    full = cut(scan, found, keep=kept.__contains__)
    return full if full is None or _is_little_work(full, scan) else None


def _is_little_work(full: Cut, scan: Scan) -> bool:
    """Whether replaying a step takes little more than its step back, where memory has no price."""
    ways = (route[-1] for stack, _ in full.residuals for route, _ in routes(stack.result) or ())
    back = {last.scan.body for last in ways if isinstance(last, Rows)}
    model, most = cost_model(), max(v.nbytes for v in (*scan.operands, *scan.results))
    again, once = model.repeated(full.ops), model.repeated(back)
    return model.is_traded or model.is_worth_replaying(again, once + model.loop_seconds(1, most))


def _slice(value: Value, scan: Scan) -> list[Op]:
    """The ops of a step that compute a value."""
    return backward_slice([value], lambda v: not scan.body.defines(v))


def is_replayed(scan: Scan, cut: Cut) -> bool:
    """Whether storing takes longer than replaying: a single step, or all that store in a batch."""
    model, sizes, skip = cost_model(), (cut.old_bytes, cut.new_bytes), find_skip(scan)
    old, new = (model.stored(nbytes) + model.held(nbytes) for nbytes in sizes)
    steps = scan.length if skip is not None and _takes_most(skip) else 1
    return old > cut.replay_seconds * steps + new


def _takes_most(skip: Skip) -> bool:
    """Whether most steps are taken: a batch is padded to its longest row."""
    asked = {v for op in skip.slice for v in op.operands} | {skip.predicate}
    return skip.kind == "upfront" and any(v.shape for v in asked if skip.scan.body.defines(v))


def steps_storing(scan: Scan, cut: Cut) -> int:
    """How many of the first steps are to store, where the others are replayed one by one."""
    found = replay(scan)
    if found is None or cost_model().is_traded or is_divided(scan):
        return 0
    if not {stack for stack, _ in cut.residuals} <= {*found.stacks}:
        return 0
    return first_storing(found, (cut.old_bytes - cut.new_bytes) / scan.length, cut.replay_seconds)


def first_storing(found: Replay, nbytes: float, replay_seconds: float) -> int:
    """How many of the first steps are to store so many bytes more than if they are replayed: as
    many as do so in the time of one replay; none or all, if only one kind is worth loops.
    """
    length, model = found.scan.length, cost_model()
    row, seconds = model.filled(nbytes), replay_seconds - model.moved(found.divided)
    steps = min(int(max(seconds, 0.0) / row), length)
    if not model.is_worth_loops(2, steps * replay_seconds):
        return 0
    return steps if model.is_worth_loops(2, (length - steps) * row) else length
