"""Divide a loop's steps into segments, and recompute a segment for a loop that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.residuals.replays import Replay
from jaxpr_opt.analysis.steps.masks import Prefix, first_rows
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.builders.steps.any_row import any_true
from jaxpr_opt.builders.steps.pieces import split_off
from jaxpr_opt.builders.steps.skipped_steps import is_taken
from jaxpr_opt.ir.graph import Op, Region, Scan, Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter

RowOf = Mapping[Value, Value]
"""Of arrays that a loop reads: their rows in a segment."""
Computed = Callable[[RowOf, Op], RowOf]
"""Of the rows of some arrays: those of others, computed before an op."""


def replay_in_segments(
    found: Replay, length: int, rw: Rewriter, skips: Mapping[Scan, Skip] = MappingProxyType({})
) -> None:
    """Compute residuals again in segments of so many steps, from the carries these start with. How
    the loops skip, if a segment is to be skipped with its first step.
    """
    if rest := found.scan.length % length:
        found = split_off(found, rest, rw)
    rows = [_stacked(found.scan, value, rw) for value in found.told]
    places = [found.scan.stacks.index(stack) for stack in found.stacks]
    streams = [found.scan.streams.index(stream) for stream in found.streams]
    carries = [found.scan.carries.index(carry) for carry in found.carries]
    outer, flat = _in_segments(found.scan, length, rw, skip=skips.get(found.scan))
    residuals = [flat[place] for place in places]
    given = [outer.streams[n].operand for n in streams]
    given += [outer.stacks[place].result for place in rows]
    told = dict(zip(found.told, given[len(streams) :], strict=True))
    pairs = zip(found.stacks, residuals, strict=True)
    told = {rows: told[stack.value] for stack, rows in pairs if stack.value in told}
    given += [_starts(outer, n, rw) for n in carries]
    for reader in found.readers:
        _read_again(reader, found, residuals, given, length, rw, skips.get(reader), told)
    _drop(outer, residuals, rw)


def _stacked(scan: Scan, value: Value, rw: Rewriter) -> int:
    """The place among the stacks of a loop of one that stacks a value."""
    stack = Stack(value, rw.new_value(rw.stacked_aval(value, scan.length), value.name))
    rw.set_scan(scan, stacks=[*scan.stacks, stack])
    return len(scan.stacks) - 1


def _starts(outer: Scan, carry: int, rw: Rewriter) -> Value:
    """The stack of one carry at the start of each segment."""
    start = outer.carries[carry].param
    stack = Stack(start, rw.new_value(rw.stacked_aval(start, outer.length), start.name))
    rw.set_scan(outer, stacks=[*outer.stacks, stack])
    return stack.result


def _drop(outer: Scan, residuals: Sequence[Value], rw: Rewriter) -> None:
    """Stack no residuals."""
    for flat in residuals:
        assert flat.op is not None
        rw.erase(flat.op)
    kept = [stack for stack in outer.stacks if stack.result.uses]
    gone = {stack.value for stack in outer.stacks}.difference(stack.value for stack in kept)
    rw.set_scan(outer, stacks=kept)
    for inner in outer.body.ops:
        if isinstance(inner, Scan):  # else in a branch
            rw.set_scan(inner, stacks=[stack for stack in inner.stacks if stack.result not in gone])


def _read_again(
    reader: Scan,
    found: Replay,
    residuals: Sequence[Value],
    given: Sequence[Value],
    length: int,
    rw: Rewriter,
    skip: Skip | None,
    told: Mapping[Value, Value],
) -> None:
    """Let a loop compute the residuals that it reads, segment by segment."""

    def computed(rows: RowOf, before: Op) -> RowOf:
        made = _replayed(found, [rows[array] for array in given], length, before, rw)
        return dict(zip(residuals, made, strict=True))

    _in_segments(reader, length, rw, given, residuals, computed, skip, told)


def _replayed(
    found: Replay, given: Sequence[Value], length: int, before: Op, rw: Rewriter
) -> tuple[Value, ...]:
    """The residuals of a segment, from rows of streams, what tells which steps are taken, and the
    carries that it starts with.
    """
    count = len(found.streams) + len(found.told)
    rows, starts = given[:count], given[count:]
    params = [*(c.param for c in found.carries), *(s.param for s in found.streams), *found.told]
    region = rw.new_region(params)
    mapping = dict(zip(params, region.params, strict=True))
    computed = {result for op in found.ops for result in op.results}
    for value in (v for op in found.ops for each in op.walk() for v in each.operands):
        own = value.region is found.ops[0].region
        if own and value not in computed and value not in mapping:  # of which nothing comes
            mapping[value] = rw.undefined(value.aval, before=region.terminator)
    rw.clone(found.ops, mapping, region.terminator)
    values = [stack.value for stack in found.stacks]
    outputs = [*(carry.next for carry in found.carries), *values]
    rw.set_outputs(region, [mapping.get(value, value) for value in outputs])
    avals = [rw.stacked_aval(value, length) for value in values]
    made = partial(rw.new_scan, reverse=found.scan.reverse, like=found.scan)(
        region, starts, rows, avals, length=length, before=before
    )
    return made.results[len(starts) :]


def _in_segments(
    scan: Scan,
    length: int,
    rw: Rewriter,
    given: Sequence[Value] = (),
    gone: Sequence[Value] = (),
    computed: Computed | None = None,
    skip: Skip | None = None,
    told: Mapping[Value, Value] = MappingProxyType({}),
) -> tuple[Scan, tuple[Value, ...]]:
    """Replace a loop by one over segments of a loop over steps; the loop over segments, and what
    the steps stack, one after the other.

    It also reads what is `given`, arrays of as many rows as there are segments; rows of arrays that
    are `gone` are computed from all that it reads, but those that are `told` in another array.
    """
    count, size, results = scan.length // length, scan.num_carries, scan.results
    streams = [stream for stream in scan.streams if stream.operand not in gone]
    split = {s.param: _split(s.operand, count, scan, rw) for s in streams}
    arrays = [*split.values(), *given]
    stream = scan.stream_of(skip.predicate) if skip is not None else None
    mask = first_rows(skip) if skip is not None and stream is None else None
    if mask is not None:
        arrays.append(_first_steps(mask, scan, length, rw))
    params = [rw.new_value(rw.row_aval(array), array.name) for array in arrays]
    region = rw.new_region([*scan.body.params[:size], *params])
    row = dict(zip(arrays, region.params[size:], strict=True))
    inside = region if skip is None else rw.new_region()
    row |= {} if computed is None else computed(row, inside.terminator)
    read = [row[split.get(s.param, s.operand)] for s in scan.streams]
    loop = partial(rw.new_scan, reverse=scan.reverse, like=scan)
    avals = [rw.stacked_aval(stack.value, length) for stack in scan.stacks]
    inner = loop(
        rw.detach_region(scan),
        region.params[:size],
        read,
        avals,
        length=length,
        before=inside.terminator,
    )
    rw.set_outputs(inside, inner.results)
    if skip is not None:
        flags = None if stream is None else told.get(stream.operand, split.get(stream.param))
        taken = _taken(skip, None if flags is None else row[flags], mask, inner, region, rw)
        skipped = _skipped(skip, inner, region.params[:size], rw)
        branches = rw.new_cond(taken, [skipped, inside], like=scan, before=region.terminator)
        rw.set_outputs(region, branches.results)
    avals = [rw.stacked_aval(rows, count) for rows in region.outputs[size:]]
    outer = loop(region, scan.operands[:size], arrays, avals, length=count, before=scan)
    flat = tuple(_flat(stack.result, scan, rw) for stack in outer.stacks)
    for old, new in zip(results, (*outer.results[:size], *flat), strict=True):
        rw.replace(old, new)
    rw.erase(scan)
    return outer, flat


def _first_steps(mask: Prefix, scan: Scan, length: int, rw: Rewriter) -> Value:
    """For each segment, the number of its first step."""
    end = mask.offset + scan.length

    def numbers() -> jax.Array:
        return lax.slice(lax.iota(mask.bound.dtype, end), (mask.offset,), (end,), (length,))

    return rw.insert(numbers, before=scan)


def _taken(
    skip: Skip,
    flags: Value | None,
    mask: Prefix | None,
    inner: Scan,
    segment: Region,
    rw: Rewriter,
) -> Value:
    """Whether a segment takes a step."""
    end = segment.terminator
    if mask is not None:
        return rw.insert(lax.lt, segment.params[-1], mask.bound, before=end)
    if flags is not None:
        if not skip.taken_when:
            flags = rw.insert(lax.bitwise_not, flags, before=end)
        return rw.insert(any_true, flags, before=end)
    params = inner.body.params[: inner.num_carries]
    starts = dict(zip(params, segment.params[: len(params)], strict=True))
    first = rw.clone(skip.slice, starts, end).get(skip.predicate, skip.predicate)
    return rw.insert(partial(is_taken, skip), first, before=end)


def _skipped(skip: Skip, inner: Scan, starts: Sequence[Value], rw: Rewriter) -> Region:
    """The branch of a segment that is skipped: it does nothing."""
    region = rw.new_region()
    rows = list[Value]()
    for stack in inner.stacks:
        known = skip.skipped[stack.value]
        if stack.value is skip.predicate:
            known = Splat(np.bool_(not skip.taken_when))
        if isinstance(known, Splat):
            rows.append(rw.full(known.value, stack.result.aval, before=region.terminator))
        else:
            rows.append(rw.undefined(stack.result.aval, before=region.terminator))
    rw.set_outputs(region, [*starts, *rows])
    return region


def _split(array: Value, count: int, before: Op, rw: Rewriter) -> Value:
    """The rows of an array by segments."""
    rows, *row = array.shape
    return rw.reshape(array, (count, rows // count, *row), before=before)


def _flat(array: Value, before: Op, rw: Rewriter) -> Value:
    """The rows of all segments, one after the other."""
    count, length, *row = array.shape
    return rw.reshape(array, (count * length, *row), before=before)
