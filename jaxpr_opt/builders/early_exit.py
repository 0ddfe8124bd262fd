"""Make a `while` that stops early out of a scan that skips steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.steps.first_taken import are_first
from jaxpr_opt.analysis.steps.going_on import going_on, settles
from jaxpr_opt.analysis.steps.masks import Prefix, first_rows
from jaxpr_opt.analysis.steps.questions import is_known_in_steps
from jaxpr_opt.analysis.steps.skipped_rows import SkippedRow, skipped_row
from jaxpr_opt.analysis.steps.skips import Skip, all_taken, has_branch
from jaxpr_opt.analysis.values.constants import is_weak, strong
from jaxpr_opt.analysis.windows.row_views import Rows, rows_of_stream
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.slicing import write_row
from jaxpr_opt.builders.any_row import any_true
from jaxpr_opt.builders.skipped_steps import in_skipped_step
from jaxpr_opt.builders.streamed_rows import row_of_step
from jaxpr_opt.builders.unless_finite import surround
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import reads
from jaxpr_opt.ir.graph import Constant, Op, Region, Scan, Stream, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.unrolling import steps_as_one


def stop_early(
    skip: Skip,
    rw: Rewriter,
    unread: Set[Value] = frozenset(),
    steps: Value | None = None,
    every: int = 1,
    feeders: Sequence[Scan] = (),
    one_by_one: bool = False,
) -> Value:
    """Replace a scan by a `while` that runs until no later step is taken: one of the first `steps`,
    if that is known; it asks before `every` so many steps, which divide the number of all. Nothing
    reads the rows of skipped steps of stacks that are `unread`. The `feeders` make as many rows.
    `one_by_one`, another loop asks of each row, from the last to the first, until one is taken.

    Returns:
      How many rows are among those that were run; of a loop in reverse, as many as it began with.
    """
    scan = skip.scan
    found = (
        SkippedRow() if stack.result in unread else skipped_row(skip, stack)
        for stack in scan.stacks
    )
    rows = [each for each in found if isinstance(each, SkippedRow)]  # `refuse` said no others
    find = _last_found if one_by_one else last_step
    stop = find(skip, rw) if steps is None else steps
    if every > 1 and not isinstance(stop, Constant):
        stop = rw.insert(partial(_whole, every), stop, before=scan)
    for each in feeders:
        rw.move(each, scan)
        stop_early(all_taken(each), rw, {s.result for s in each.stacks}, stop, every)
    carries, stacks = scan.carries, scan.stacks
    inits = _inits(skip, stop, rows, rw)
    along = _is_carried_along(skip, every)
    if along:
        inits.append(_predicate_of([c.init for c in carries], skip, scan, rw))
    around = surround(skip, stop, inits, rw) if skip.products else None
    until = stop if around is None else around.until
    predicate = _predicate(skip, inits, until, along, rw)
    going = _going_on(skip, inits, rw) if skip.going else None
    refilling = {op for each in rows for op in each.all_ops()}
    once = _body(skip, inits, refilling, every, along, rw)
    body = once if every == 1 else _repeated(once, every, scan, rw)
    if around is None:
        loop = rw.new_while(predicate, body, inits, like=scan, before=scan)
        row, *left = loop.results
    else:
        row, *left = around.run(predicate, body, rw)
    finals, buffers = tuple(left[: len(carries)]), left[len(carries) :][: len(stacks)]
    kept = _in_skipped_steps(skip, once, finals, along, rw)
    if going is not None:
        settled = rw.new_while(*going, [row, *finals], like=scan, before=scan).results[1:]
        finals = tuple(settled)
    _end_carries(skip, finals, rw)
    done = stop if skip.kind == "upfront" and not skip.products else row
    for stack, buffer, skipped in zip(stacks, buffers, rows, strict=True):
        rw.replace(stack.result, _refilled(skip, buffer, skipped, kept, done, rw))
    rw.erase(scan)
    return done


def _end_carries(skip: Skip, finals: Sequence[Value], rw: Rewriter) -> None:
    """Let the carries end as they are after the loop that stops; counters as if all steps ran."""
    scan, advances = skip.scan, {c.param: step for c, step in skip.counters}
    for carry, final in zip(scan.carries, finals, strict=True):
        step = advances.get(carry.param)
        end = final if step is None else _count(carry.init, step, scan.length, scan, rw)
        if is_weak(end) and not is_weak(carry.result):  # it begins as a weak type
            end = rw.insert(strong, end, before=scan)
        rw.replace(carry.result, end)


def last_step(skip: Skip, rw: Rewriter) -> Value:
    """The number of rows among which are all steps that are taken."""
    scan, n = skip.scan, skip.scan.length
    if skip.kind == "carried":
        return rw.scalar(n, np.int32)
    first = first_rows(skip)
    if first is not None:
        return rw.insert(partial(_rows_below, first, n), first.bound, before=scan)
    asked = reads(skip.slice) | {skip.predicate}
    streams = (s for s in scan.streams if s.param in asked)
    rows = {s.param: _view_of_its_own(s.operand, scan, rw) for s in streams}
    for carry, step in skip.counters:
        rows[carry.param] = _count(carry.init, step, None, scan, rw)
    masks = rw.vectorize(skip.slice, skip.predicate, rows, length=n, before=scan)

    def last(p: jax.Array) -> jax.Array:
        taken = lax.reduce_or(lax.reshape(_is_taken(skip, p), (n, p.size // n)), (1,))
        after = lax.add(np.int32(1), lax.iota(np.int32, n))
        return lax.reduce_max(lax.select(taken, after, lax.broadcast(np.int32(0), (n,))), (0,))

    return rw.insert(last, masks, before=scan)


def _last_found(skip: Skip, rw: Rewriter) -> Value:
    """The same, by a loop that goes on as long as the row before is of no step that is taken."""
    scan = skip.scan
    inits = [rw.scalar(scan.length, np.int32)]
    predicate, body = rw.new_region(inits), rw.new_region(inits)
    (rows,), end = predicate.params, predicate.terminator
    row = rw.insert(_before, rows, before=end)
    asked = reads(skip.slice) | {skip.predicate}
    known = {s.param: _row(s, row, scan, end, rw) for s in scan.streams if s.param in asked}
    taken = _cloned(skip, known, end, rw)

    def is_skipped(rows: jax.Array, taken: jax.Array) -> jax.Array:
        left = lax.gt(rows, np.int32(0))
        return lax.bitwise_and(left, lax.bitwise_not(any_true(_is_taken(skip, taken))))

    rw.set_outputs(predicate, [rw.insert(is_skipped, rows, taken, before=end)])
    before = rw.insert(_before, body.params[0], before=body.terminator)
    rw.set_outputs(body, [before])
    return rw.new_while(predicate, body, inits, like=scan, before=scan).results[0]


def _before(row: jax.Array) -> jax.Array:
    return lax.sub(row, np.int32(1))


def _row(stream: Stream, row: Value, scan: Scan, before: Op, rw: Rewriter) -> Value:
    """The row of a stream."""
    return row_of_step(rows_of_stream(stream, scan) or Rows(stream.operand), row, before, rw)


def _whole(every: int, rows: jax.Array) -> jax.Array:
    """The next multiple of a number."""
    return lax.mul(lax.div(lax.add(rows, np.int32(every - 1)), np.int32(every)), np.int32(every))


def _view_of_its_own(array: Value, scan: Scan, rw: Rewriter) -> Value:
    """An array; where it is a view, another one, so that the loop can read what the view is of."""
    op = array.op
    if op is None or op.name not in ("rev", "slice", "transpose") or op.region is not scan.region:
        return array
    made: dict[Value, Value] = {}
    rw.clone([op], made, scan)
    return made[array]


def _is_taken(skip: Skip, predicate: jax.Array) -> jax.Array:
    return lax.eq(predicate, np.bool_(skip.taken_when))


def _rows_below(mask: Prefix, n: int, bound: jax.Array) -> jax.Array:
    """How many rows `i` of `n` there are with ``a * i + offset < bound``."""
    (a,), (_, top) = mask.coefficients, dtypes.limits(bound.dtype)
    limit = min(a * (n - 1) + mask.offset + 1, top)
    clipped = lax.clamp(lax.full_like(bound, 0), bound, lax.full_like(bound, limit))
    below = lax.convert_element_type(clipped, np.int32)
    if a > 1 or mask.offset:
        past = lax.add(lax.sub(below, np.int32(mask.offset)), np.int32(a - 1))
        below = lax.div(lax.max(past, np.int32(0)), np.int32(a))
    return below


def _count(init: Value, step: Value, after: int | None, scan: Scan, rw: Rewriter) -> Value:
    """A counter after that many steps; without `after`, its value in each row."""
    n = scan.length

    def count(i: jax.Array, s: jax.Array) -> Any:
        if after is not None:
            return lax.add(i, lax.mul(s, dtypes.wrapped(i.dtype, after)))
        rows = lax.iota(np.int32, n)
        steps = lax.sub(np.int32(n - 1), rows) if scan.reverse else rows
        return lax.add(i, lax.mul(s, lax.convert_element_type(steps, i.dtype)))

    return rw.typed(count, init.aval if after is not None else None, init, step, before=scan)


def _inits(skip: Skip, stop: Value, rows: Sequence[SkippedRow], rw: Rewriter) -> list[Value]:
    """What the while loop starts from: the row number, the scan's carries, one buffer a stack."""
    scan, n = skip.scan, skip.scan.length
    row = rw.insert(lambda b: lax.sub(b, np.int32(1) if scan.reverse else b), stop, before=scan)
    steps = {c.param: step for c, step in skip.counters}
    carries = []
    for carry in scan.carries:
        init = carry.init
        if scan.reverse and skip.kind == "upfront" and carry.param in steps:

            def ahead(i: jax.Array, s: jax.Array, b: jax.Array) -> jax.Array:
                left = lax.convert_element_type(lax.sub(np.int32(n), b), i.dtype)
                return lax.add(i, lax.mul(s, left))

            init = rw.typed(ahead, init.aval, init, steps[carry.param], stop, before=scan)
        carries.append(init)
    types = (stack.result.aval for stack in scan.stacks)
    buffers = (_buffer(each, t, scan, rw) for each, t in zip(rows, types, strict=True))
    return [row, *carries, *buffers]


def _is_number(skipped: SkippedRow, aval: Any) -> bool:
    """Whether the rows of skipped steps are one number, so that a buffer can start with them."""
    return skipped.constant is not None and aval.sharding.mesh.empty


def _buffer(skipped: SkippedRow, aval: Any, before: Op, rw: Rewriter) -> Value:
    """What rows are written into: the rows of skipped steps, or anything."""
    if skipped.constant is None or not _is_number(skipped, aval):
        return rw.undefined(aval, before=before)
    return _full(rw.scalar(skipped.constant.value, aval.dtype), aval, before, rw)


def _full(number: Value, aval: Any, before: Op, rw: Rewriter) -> Value:
    """An array of which every element is a number."""
    full = partial(lax.broadcast_in_dim, shape=aval.shape, broadcast_dimensions=())
    return rw.typed(full, aval, number, before=before)


def _in_range(scan: Scan, row: jax.Array, stop: Any) -> jax.Array:
    """Whether there is such a row before the last one."""
    return lax.ge(row, np.int32(0)) if scan.reverse else lax.lt(row, stop)


def _predicate(skip: Skip, inits: list[Value], stop: Value, along: bool, rw: Rewriter) -> Region:
    """Whether row `row` is to be run: it is in range and, if that is known in the loop only,
    its step is taken.
    """
    scan = skip.scan
    region = rw.new_region(inits)
    row, end = region.params[0], region.terminator

    def and_taken(go_on: jax.Array, p: jax.Array) -> jax.Array:
        return lax.bitwise_and(go_on, any_true(_is_taken(skip, p)))

    is_below = partial(_in_range, scan)
    go_on = rw.insert(is_below, row, stop, before=end)
    if skip.kind == "carried":
        given = region.params[1:]
        known = given[-1] if along else _predicate_of(given, skip, end, rw)
        taken = _in_less_time(known, region, rw)
        if skip.products:  # up to there, it runs in any case
            in_range = rw.insert(is_below, row, rw.scalar(scan.length, np.int32), before=end)
            taken = rw.insert(and_taken, in_range, taken, before=end)
            go_on = rw.insert(lax.bitwise_or, go_on, taken, before=end)
        else:
            go_on = rw.insert(and_taken, go_on, taken, before=end)
    rw.set_outputs(region, [go_on])
    return region


def _going_on(skip: Skip, inits: list[Value], rw: Rewriter) -> tuple[Region, Region]:
    """A loop of what the steps after the last one taken make of carries that they change: of the
    first of them, if the others make the same.
    """
    scan, types = skip.scan, inits[: 1 + skip.scan.num_carries]
    predicate, body = rw.new_region(types), rw.new_region(types)
    onward = lax.sub if scan.reverse else lax.add
    in_range = partial(_in_range, scan, stop=np.int32(scan.length))
    more = rw.insert(in_range, predicate.params[0], before=predicate.terminator)
    rw.set_outputs(predicate, [more])
    row, end = body.params[0], body.terminator
    mapping = dict(zip((c.param for c in scan.carries), body.params[1:], strict=True))
    computed = going_on(skip)
    asked = {v for v in computed.known.values() if isinstance(v, Value)}
    mapping |= {s.param: _row(s, row, scan, end, rw) for s in scan.streams if s.param in asked}
    known = in_skipped_step(computed, mapping, end, rw)
    changing = {c.param for c in skip.kept}
    nexts = [mapping[c.param] if c.param in changing else known(c.next) for c in scan.carries]
    step = np.int32(scan.length if settles(skip) else 1)
    rw.set_outputs(body, [rw.insert(lambda i: onward(i, step), row, before=end), *nexts])
    return predicate, body


def _is_carried_along(skip: Skip, every: int) -> bool:
    """Whether each step computes the predicate of the next, which otherwise a question before
    `every` so many steps, and each reader in a step, would compute: a batch knows its rows only, so
    the step needs it.
    """
    if skip.kind != "carried" or skip.predicate.shape == ():
        return False
    saved = len({*skip.predicate.users} - {*skip.slice}) - 1 + 1 / every
    return cost_model().is_worth_carrying(skip.predicate, skip.slice, saved)


def _predicate_of(carries: Sequence[Value], skip: Skip, before: Op, rw: Rewriter) -> Value:
    """The predicate of a step that starts with such carries."""
    params = (c.param for c in skip.scan.carries)
    return _cloned(skip, dict(zip(params, carries, strict=False)), before, rw)


def _cloned(skip: Skip, mapping: dict[Value, Value], before: Op, rw: Rewriter) -> Value:
    rw.clone(skip.slice, mapping, before)
    return mapping.get(skip.predicate, skip.predicate)


def _in_less_time(taken: Value, region: Region, rw: Rewriter) -> Value:
    """A truth value; whether any of many is true, as `any_true` computes it."""
    op = taken.op
    if op is None or op.region is not region or op.name != "reduce_or" or taken.shape:
        return taken
    return rw.insert(any_true, op.operands[0], before=op) if op.operands[0].dtype == bool else taken


def _body(
    skip: Skip, inits: list[Value], refilling: set[Op], every: int, along: bool, rw: Rewriter
) -> Region:
    """One step: rows of streams are sliced, rows of stacks written.

    Its predicate is true where each step is asked, except to the ops that are going to compute what
    skipped steps stack.
    """
    scan, n = skip.scan, skip.scan.num_carries
    region = rw.new_region(inits)
    row, end = region.params[0], region.terminator
    # Condition 2 of exit-loop-early.
    is_known = not skip.products and (is_known_in_steps(skip) or are_first(skip))
    if every == 1 and is_known and _is_rid_of(skip):
        for value, truth in _known(skip):
            known = rw.constant(np.bool_(truth), value.aval)
            rw.replace(value, known, lambda use: use.op not in refilling)
    if along:
        rw.replace(skip.predicate, region.params[-1], lambda use: use.op not in refilling)
    reading = reads(scan.body.ops)
    rows = [_row(s, row, scan, end, rw) if s.param in reading else s.param for s in scan.streams]
    outputs = rw.inline(scan.body, [*region.params[1 : n + 1], *rows], end)
    written = [
        rw.typed(write_row, b.aval, b, v, row, before=end)
        for b, v in zip(region.params[n + 1 :], outputs[n:], strict=False)
    ]
    onward = lax.sub if scan.reverse else lax.add
    following = rw.insert(lambda i: onward(i, np.int32(1)), row, before=end)
    results = [following, *outputs[:n], *written]
    if along:
        mapping = dict(zip(region.params[1:], outputs[:n], strict=False))
        results.append(_cloned(skip, mapping, end, rw))
    rw.set_outputs(region, results)
    return region


def _known(skip: Skip) -> Iterator[tuple[Value, bool]]:
    """What is known in each step that is run, as the step is taken: its predicate, or, of a batch,
    whether that is true of any row.
    """
    pending = [(skip.predicate, skip.taken_when)]
    for value, truth in pending:
        if value.shape == ():
            yield value, truth
            continue
        telling = "reduce_or" if truth else "reduce_and"
        for op in value.users:
            if op.name == telling and op.result.shape == ():
                yield op.result, truth
            elif op.name in ("not", "reshape") and op.result.dtype == bool:
                pending.append((op.result, truth != (op.name == "not")))


def _is_rid_of(skip: Skip) -> bool:
    """Whether steps without their predicate take less time.  In a loop of few numbers selects of a
    few cost nothing, and keep XLA from computing again what they choose, for the next predicate.
    """
    are_few = all(cost_model().is_no_line(carry.param.nbytes) for carry in skip.kept)
    is_next = skip.kind == "carried" and are_few and not has_branch(skip)
    return not (is_next and cost_model().is_one_function(skip.scan))


def _repeated(step: Region, times: int, like: Scan, rw: Rewriter) -> Region:
    """So many steps."""
    region = rw.new_region(step.params)
    params, end = region.params, region.terminator
    many = partial(rw.new_scan, length=times, reverse=False, like=like, before=end)
    loop = many(step, params, [], [])
    rw.set_scan(loop, unroll=steps_as_one(like))
    rw.set_outputs(region, loop.results)
    return region


def _in_skipped_steps(
    skip: Skip, body: Region, finals: tuple[Value, ...], along: bool, rw: Rewriter
) -> dict[Value, Value]:
    """The body's parameters in the steps that were skipped: after the last one taken, or, in
    reverse, before it.
    """
    early = skip.kind == "upfront" and skip.scan.reverse
    values = [c.init for c in skip.scan.carries] if early else list(finals)
    false = rw.constant(np.full(skip.predicate.shape, not skip.taken_when), skip.predicate.aval)
    mapping: dict[Value, Value] = {skip.predicate: false}
    for old, new, final in zip(skip.scan.body.params, body.params[1:], values, strict=False):
        mapping[old] = mapping[new] = final
    if along:
        mapping[body.params[-1]] = false
    return mapping


def _refilled(
    skip: Skip,
    buffer: Value,
    skipped: SkippedRow,
    kept: dict[Value, Value],
    done: Value,
    rw: Rewriter,
) -> Value:
    """The stack: rows that were run, and the others as skipped steps would have made them."""
    if skipped.is_unspecified or _is_number(skipped, buffer.aval):
        return buffer
    scan = skip.scan
    if skipped.value is not None:
        value = in_skipped_step(skipped.computed, dict(kept), scan, rw)(skipped.value)
    else:
        assert skipped.constant is not None
        value = rw.scalar(skipped.constant.value, buffer.dtype)

    downwards = scan.reverse and skip.kind == "carried"
    if cost_model().is_faster_by_rows(scan.length, buffer.nbytes):
        bounds: tuple[Value, Value] = done, rw.scalar(scan.length, np.int32)
        if downwards:
            end = rw.insert(lambda d: lax.add(d, np.int32(1)), done, before=scan)
            bounds = rw.scalar(0, np.int32), end
        return _written_again(scan, buffer, value, *bounds, rw)

    def fill(rows: jax.Array, d: jax.Array, row: jax.Array) -> jax.Array:
        number = lax.broadcasted_iota(np.int32, rows.shape, 0)
        ran = (lax.gt if downwards else lax.lt)(number, d)
        axes = range(rows.ndim - row.ndim, rows.ndim)
        return lax.select(ran, rows, lax.broadcast_in_dim(row, rows.shape, axes))

    return rw.typed(fill, buffer.aval, buffer, done, value, before=scan)


def _written_again(
    scan: Scan, buffer: Value, row: Value, low: Value, high: Value, rw: Rewriter
) -> Value:
    """The buffer with a row at all places from `low` to `high`; no other place is copied."""
    aval = rw.row_aval(buffer)
    if row.shape != aval.shape:  # one number
        row = _full(row, aval, scan, rw)
    inits = [low, buffer]
    predicate, body = rw.new_region(inits), rw.new_region(inits)
    go_on = rw.insert(lax.lt, predicate.params[0], high, before=predicate.terminator)
    rw.set_outputs(predicate, [go_on])
    (i, rows), end = body.params, body.terminator
    written = rw.typed(write_row, rows.aval, rows, row, i, before=end)
    following = rw.insert(lambda i: lax.add(i, np.int32(1)), i, before=end)
    rw.set_outputs(body, [following, written])
    return rw.new_while(predicate, body, inits, like=scan, before=scan).results[1]
