"""Make a `while` that stops early out of a scan that skips steps."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.steps.first_taken import rows_below
from jaxpr_opt.analysis.steps.going_on import going_on, settles
from jaxpr_opt.analysis.steps.skipped_rows import SkippedRow, skipped_row
from jaxpr_opt.analysis.steps.skips import Skip, all_taken
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.analysis.values.constants import is_weak, strong
from jaxpr_opt.builders.steps.refilled_stacks import (
    MissingRows,
    buffer_of_rows,
    missing_rows,
    refill,
)
from jaxpr_opt.builders.steps.skipped_steps import in_skipped_step
from jaxpr_opt.builders.steps.step_rows import row_at
from jaxpr_opt.builders.steps.stopping_loop import (
    goes_on,
    is_carried_along,
    is_in_range,
    one_step,
    predicate_after,
    repeated,
)
from jaxpr_opt.builders.steps.taken_steps import (
    counted_on,
    last_step,
    last_step_found,
)
from jaxpr_opt.builders.steps.unless_finite import begin_if_finite, surround
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Constant, Op, Region, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True)
class Plan:
    """How a scan that skips steps is to stop early."""

    skip: Skip
    every: int = 1
    """It asks before so many steps whether to go on; they divide the number of all."""
    steps: Value | None = None
    """How many of the first steps are run, if that is known; else as many as are taken."""
    unread: Set[Value] = frozenset()
    """The stacks of which nothing reads the rows of skipped steps."""
    feeders: Sequence[Scan] = ()
    """The loops that make rows for this one only: they make as many as it reads."""
    one_by_one: bool = False
    """Whether another loop looks for the last step taken, row by row from the last one."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """What the loop that stops leaves."""

    row: Value
    """The row at which it stopped."""
    finals: Sequence[Value]
    """The carries of the scan, as the last step taken left them."""
    buffers: Sequence[Value]
    """The stacks of the scan, without the rows of skipped steps."""
    step: Region
    """One step of it."""
    rows: Sequence[Value]
    """The rows of the streams that the step reads."""
    refilling: Set[Op]
    """The ops that compute again what skipped steps make."""
    going: tuple[Region, Region] | None
    """The loop over the steps after the last one taken, of the carries that these change."""


def stop_early(plan: Plan, rw: Rewriter) -> Value:
    """Replace a scan by a `while` that runs until no later step is taken.

    Returns:
      How many rows are among those that were run; of a loop in reverse, as many as it began with.
    """
    skip, scan = plan.skip, plan.skip.scan
    skipped = _skipped_rows(plan)
    stop = _stop(plan, rw)
    for each in plan.feeders:
        rw.move(each, scan)
        unread = {stack.result for stack in each.stacks}
        stop_early(Plan(all_taken(each), every=plan.every, steps=stop, unread=unread), rw)
    ended = _run(plan, stop, skipped, rw)
    kept = _in_skipped_steps(skip, ended, rw)
    _end_carries(skip, ended, rw)
    is_known = skip.is_early or (skip.kind == "upfront" and not skip.products)
    done = stop if is_known else ended.row
    _end_stacks(skip, ended.buffers, skipped, kept, done, rw)
    rw.erase(scan)
    return done


def _skipped_rows(plan: Plan) -> list[SkippedRow]:
    """What skipped steps stack; `refuse` said that this is known."""
    found = (
        SkippedRow() if stack.result in plan.unread else skipped_row(plan.skip, stack)
        for stack in plan.skip.scan.stacks
    )
    return [each for each in found if isinstance(each, SkippedRow)]


def _stop(plan: Plan, rw: Rewriter) -> Value:
    """The row before which the loop stops, if it does not stop sooner by its predicate."""
    stop = plan.steps
    if stop is None:
        is_found = plan.one_by_one or _is_one_number(plan.skip)
        stop = (last_step_found if is_found else last_step)(plan.skip, rw)
    if plan.every > 1 and not isinstance(stop, Constant):
        stop = rw.insert(partial(_whole, plan.every), stop, before=plan.skip.scan)
    is_asked = plan.skip.products and plan.skip.is_early
    return begin_if_finite(plan.skip, stop, rw) if is_asked else stop


def _is_one_number(skip: Skip) -> bool:
    """Whether looking at one number of each row, from the last to the first, takes less memory than
    at those of all rows, and no more time than the steps that this leaves out.
    """
    if skip.kind == "carried" or rows_below(skip) is not None or cost_model().asks_the_host:
        return False
    asked = [v for op in skip.slice for v in op.results] + [skip.predicate]
    counters = {carry.param for carry, _ in skip.counters}
    is_short = skip.scan.length <= limits.ROWS_NUMBERED_AT_ONCE
    is_counted = counters & skip.asked
    return not is_short and not is_counted and all(v.size == 1 for v in asked)


def _run(plan: Plan, stop: Value, skipped: Sequence[SkippedRow], rw: Rewriter) -> _Ended:
    """The loop that stops, before the scan, whose step becomes one of it."""
    skip, scan = plan.skip, plan.skip.scan
    inits = _inits(skip, stop, skipped, rw)
    if skip.going and skip.is_early:
        _begin_going(skip, stop, inits, rw)
    along = is_carried_along(skip, plan.every)
    if along:
        inits.append(predicate_after([c.init for c in scan.carries], skip, scan, rw))
    around = surround(skip, stop, inits, rw) if skip.products and not skip.is_early else None
    predicate = goes_on(skip, inits, stop if around is None else around.until, along, rw)
    going = _going_on(skip, inits, rw) if skip.going and not skip.is_early else None
    refilling = {op for each in skipped for op in each.all_ops()}
    refilling |= set() if around is None else around.made_again
    once, rows = one_step(skip, inits, refilling, plan.every, along, rw)
    body = once if plan.every == 1 else repeated(once, plan.every, scan, rw)
    if around is None:
        row, *left = rw.new_while(predicate, body, inits, like=scan, before=scan).results
    else:
        row, *left = around.run(predicate, body, once, rw)
    count = scan.num_carries
    buffers = left[count : count + len(scan.stacks)]
    return _Ended(row, left[:count], buffers, once, rows, refilling, going)


def _end_carries(skip: Skip, ended: _Ended, rw: Rewriter) -> None:
    """Let the carries end as they are after the loop that stops, and after the skipped steps that
    change them; counters as if all steps ran.
    """
    scan, advances = skip.scan, {c.param: step for c, step in skip.counters}
    finals = ended.finals
    if ended.going is not None:
        settled = rw.new_while(*ended.going, [ended.row, *finals], like=scan, before=scan)
        finals = settled.results[1:]
    for carry, final in zip(scan.carries, finals, strict=True):
        step = advances.get(carry.param)
        end = final if step is None else counted_on(carry.init, step, scan.length, scan, rw)
        if is_weak(end) and not is_weak(carry.result):  # it begins as a weak type
            end = rw.insert(strong, end, before=scan)
        rw.replace(carry.result, end)


def _end_stacks(
    skip: Skip,
    buffers: Sequence[Value],
    skipped: Sequence[SkippedRow],
    kept: dict[Value, Value],
    done: Value,
    rw: Rewriter,
) -> None:
    """Let the stacks end as the buffers do, with the rows of skipped steps if those are read."""
    left_out: dict[Value, MissingRows] = {}
    for stack, buffer, row in zip(skip.scan.stacks, buffers, skipped, strict=True):
        missing = missing_rows(skip, buffer, row, kept, done, rw)
        if missing is None:
            rw.replace(stack.result, buffer)
        else:
            left_out[stack.result] = missing
    refill(left_out, skip.scan, rw)


def _whole(every: int, rows: jax.Array) -> jax.Array:
    """The next multiple of a number."""
    return lax.mul(lax.div(lax.add(rows, np.int32(every - 1)), np.int32(every)), np.int32(every))


def _inits(skip: Skip, stop: Value, rows: Sequence[SkippedRow], rw: Rewriter) -> list[Value]:
    """What the while loop starts from: the row number, the scan's carries, one buffer a stack."""
    scan, n = skip.scan, skip.scan.length
    row = rw.insert(lambda b: lax.sub(b, np.int32(1) if scan.reverse else b), stop, before=scan)
    steps = {c.param: step for c, step in skip.counters}
    carries = []
    for carry in scan.carries:
        init = carry.init
        if skip.is_early and carry.param in steps:

            def ahead(i: jax.Array, s: jax.Array, b: jax.Array) -> jax.Array:
                left = lax.convert_element_type(lax.sub(np.int32(n), b), i.dtype)
                return lax.add(i, lax.mul(s, left))

            init = rw.typed(ahead, init.aval, init, steps[carry.param], stop, before=scan)
        carries.append(init)
    types = (stack.result.aval for stack in scan.stacks)
    buffers = (buffer_of_rows(each, t, scan, rw) for each, t in zip(rows, types, strict=True))
    return [row, *carries, *buffers]


def _begin_going(skip: Skip, stop: Value, inits: list[Value], rw: Rewriter) -> None:
    """Let the carries that skipped steps change begin as the steps before the first one taken make
    them.
    """
    scan = skip.scan
    last = rw.scalar(scan.length - 1, np.int32)
    begun = [last, *(carry.init for carry in scan.carries)]
    loop = rw.new_while(*_going_on(skip, begun, rw, stop), begun, like=scan, before=scan)
    going = {carry.param for carry in skip.going}
    for place, carry in enumerate(scan.carries, 1):
        if carry.param in going:
            inits[place] = loop.results[place]


def _going_on(
    skip: Skip, inits: list[Value], rw: Rewriter, until: Value | None = None
) -> tuple[Region, Region]:
    """A loop of what the steps after the last one taken make of carries that they change: of the
    first of them, if the others make the same. Or of the steps before the first one taken, `until`
    its row is next.
    """
    scan, types = skip.scan, inits[: 1 + skip.scan.num_carries]
    predicate, body = rw.new_region(types), rw.new_region(types)
    onward = lax.sub if scan.reverse else lax.add
    row, end = predicate.params[0], predicate.terminator
    if until is None:
        in_range = partial(is_in_range, scan, stop=np.int32(scan.length))
        more = rw.insert(in_range, row, before=end)
    else:
        more = rw.insert(lax.ge, row, until, before=end)
    rw.set_outputs(predicate, [more])
    row, end = body.params[0], body.terminator
    mapping = dict(zip((c.param for c in scan.carries), body.params[1:], strict=True))
    computed = going_on(skip)
    asked = {v for v in computed.known.values() if isinstance(v, Value)}
    mapping |= {s.param: row_at(s, row, scan, end, rw) for s in scan.streams if s.param in asked}
    known = in_skipped_step(computed, mapping, end, rw)
    kept = {c.param for c in skip.kept}
    nexts = [mapping[c.param] if c.param in kept else known(c.next) for c in scan.carries]
    step = np.int32(scan.length if settles(skip) else 1)
    rw.set_outputs(body, [rw.insert(lambda i: onward(i, step), row, before=end), *nexts])
    return predicate, body


def _in_skipped_steps(skip: Skip, ended: _Ended, rw: Rewriter) -> dict[Value, Value]:
    """What the body's parameters, and the rows of streams that `refilling` ops read, are in the
    steps that were skipped: after the last one taken, or, in reverse, before it.
    """
    scan, mapping = skip.scan, dict[Value, Value]()
    values = [c.init for c in scan.carries] if skip.is_early else ended.finals
    for carry, new, final in zip(scan.carries, ended.step.params[1:], values, strict=False):
        mapping[carry.param] = mapping[new] = final
    for stream, row in zip(scan.streams, ended.rows, strict=True):
        known = skip.skipped[stream.param]  # the predicate, or what it is made of
        if isinstance(known, Splat) and not ended.refilling.isdisjoint(row.users):
            mapping[row] = rw.full(known.value, row.aval, before=scan)
    return mapping
