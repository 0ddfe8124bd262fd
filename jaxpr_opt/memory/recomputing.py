"""Recompute dropped arrays before the ops that read them (`liveness.rematerialization`)."""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import add
from typing import NamedTuple

from jaxpr_opt.analysis.liveness.across_peak import Turn, is_free
from jaxpr_opt.analysis.liveness.rematerialization import Dropping, Segment
from jaxpr_opt.builders.fences import can_signal, waiting
from jaxpr_opt.ir.dataflow import backward_slice, inputs
from jaxpr_opt.ir.graph import Constant, Op, Use, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(slots=True, eq=False)
class Again:
    """What is computed again of a segment."""

    ops: tuple[Op, ...]
    """What may be, in order."""
    sources: tuple[Value, ...]
    """What it starts from: kept arrays, and what is there anyway."""
    dropped: tuple[Value, ...]
    """What is read after the peak, in the order in which it is, no longer as it was."""
    first: int
    """The place of the first op that reads some of it."""
    outer: Again | None = None
    """What is computed again first, and holds what this starts from."""
    made: dict[Value, Value] = field(default_factory=dict)
    """Its values, as they are after the peak."""


class _Piece(NamedTuple):
    """A segment, or a part of one that is divided again."""

    start: int
    stop: int
    segment: Segment
    late: dict[Value, int]
    """What is read of it after the peak, and where first."""


def again(found: Dropping) -> list[Again]:
    """The ops that are computed again, by segment, and within one by its parts."""
    last = _last_early(found.turn)
    ways = [_parts(found, {}), _parts(found, last)]
    return min(ways, key=lambda parts: _peak(found.turn, parts))


def _parts(found: Dropping, last: Mapping[Value, int]) -> list[Again]:
    """The same; of the arrays that are read last at some places before the peak, those are stored
    that a later segment reads, if they are read late while arrays of that are still there.
    """
    turn, kept = found.turn, set[Value]()
    pieces = [
        _Piece(start, stop, each, {})
        for each in found.segments
        for start, stop in pairwise((each.start, *each.inner, each.stop))
    ]
    for place in range(turn.at, len(turn.ops)):
        for value in _read(turn, turn.ops[place]):
            if (piece := _piece(value, turn, pieces)) is not None:
                piece.late.setdefault(value, place)
    parts, until = list[Again](), 0
    for segment in reversed(found.segments):
        own = [piece for piece in pieces if piece.segment is segment]
        inside = [v for v in turn.readers if segment.start <= _made(v, turn) < segment.stop]
        crossing = {v for v in inside if last.get(v, 0) >= segment.stop}
        kept |= {v for v in crossing if turn.readers[v][0] < until}
        parts += _again(turn, own[0], kept) if len(own) == 1 else _nested(turn, own, kept)
        until = max([until, *(turn.readers[v][-1] for v in inside)])
    return parts


def _peak(turn: Turn, parts: Sequence[Again]) -> int:
    """The most bytes that are there after the peak, as far as they are made before it or again."""
    size = len(turn.ops)
    until = {value: places[-1] for value, places in turn.readers.items()}
    since = dict.fromkeys(until, turn.at)
    for part in parts:
        dropped = {array for value in part.dropped for array in turn.arrays(value)}
        made = dropped.intersection(v for op in part.ops for v in op.results)
        since |= dict.fromkeys(made & until.keys(), part.first)
        for value in part.sources if part.outer is None else ():
            if turn.is_early(value):
                until[value] = max(until.get(value, 0), part.first)
                since[value] = turn.at
    change = [0] * (size + 1)
    for value, last in until.items():
        change[since[value]] += turn.nbytes(value)
        change[last + 1] -= turn.nbytes(value)
    there = accumulate(change[turn.at : size])
    return max(map(add, there, turn.others[turn.at : size]), default=0)


def _last_early(turn: Turn) -> dict[Value, int]:
    """Arrays, and where they are read last before the peak."""
    early = turn.ops[: turn.at]
    return {v: turn.place[op] for op in early for v in turn.fused.read.get(op, ())}


def _made(value: Value, turn: Turn) -> int:
    assert value.op is not None
    return turn.place[value.op]


def _piece(value: Value, turn: Turn, pieces: Sequence[_Piece]) -> _Piece | None:
    """The last piece that does not keep an array which a value is computed from."""
    numbers = []
    for array in turn.arrays(value):
        number = bisect_right(pieces, _made(array, turn), key=lambda piece: piece.start) - 1
        kept = pieces[number].segment.kept
        if turn.nbytes(array) and kept is not None and array not in kept:
            numbers.append(number)
    return pieces[max(numbers)] if numbers else None


def _read(turn: Turn, op: Op) -> Iterator[Value]:
    """The values that an op after the peak reads, of those that are made before it."""
    return (v for v in ([] if op.is_terminator else inputs(op)) if turn.is_early(v))


def _again(turn: Turn, piece: _Piece, kept: set[Value]) -> list[Again]:
    """What is computed again of a piece, for what is read of it late, and where first; `kept` grows
    by what it starts from.
    """
    if piece.segment.kept is None:
        return []
    keeps, late = kept | piece.segment.kept, piece.late
    dropped = [value for value in late if not keeps.issuperset(turn.arrays(value))]
    ops = tuple(_slice(turn, dropped, keeps, piece.start, piece.stop))
    if not ops:
        return []
    sources = _sources(ops)
    kept |= {value for value in sources if turn.is_early(value)}
    return [Again(ops, sources, tuple(dropped), min(late[value] for value in dropped))]


def _nested(turn: Turn, pieces: Sequence[_Piece], kept: set[Value]) -> list[Again]:
    """The same of a segment that is divided again: first its last piece is computed, and what the
    pieces before it start from; those are computed once more, from that.
    """
    segment, last = pieces[0].segment, pieces[-1]
    assert segment.kept is not None
    keeps, late = kept | segment.kept, dict[Value, int]()
    for piece in pieces:
        late |= piece.late
    dropped = [value for value in last.late if not keeps.issuperset(turn.arrays(value))]
    whole = functools.partial(_slice, turn, keeps=keeps, start=segment.start, stop=segment.stop)

    def inner(ops: Iterable[Op]) -> set[Value]:
        read = {v for op in ops for v in inputs(op) if turn.is_early(v)}
        return {v for v in read - keeps if segment.start <= _made(v, turn)}

    here = {op for op in whole(dropped) if turn.place[op] >= last.start}
    held = {v for v in inner(here) if _made(v, turn) < last.start and turn.nbytes(v)}
    parts = list[Again]()
    for piece in reversed(pieces[:-1]):
        own = keeps | held
        found = _again(turn, piece, own)
        starts = {v for part in found for v in part.sources if turn.is_early(v)} - keeps
        held |= {v for v in starts if segment.start <= _made(v, turn)}
        kept |= starts - held
        parts += found
    inner_values = {value for part in parts for value in part.dropped}
    dropped = [v for v in late if v not in inner_values and not keeps.issuperset(turn.arrays(v))]
    roots = list(dict.fromkeys((*dropped, *sorted(held, key=lambda v: _made(v, turn)))))
    if not roots:
        return []
    ops = tuple(whole(roots))
    sources = _sources(ops)
    kept |= {value for value in sources if turn.is_early(value)}
    first = min([*(late[value] for value in dropped), *(part.first for part in parts)])
    top = Again(ops, sources, tuple(dropped), first)
    for part in parts:
        part.outer = top
    return [top, *parts]


def _slice(
    turn: Turn, values: Iterable[Value], keeps: Set[Value], start: int, stop: int
) -> list[Op]:
    """The ops between two places that some values are computed by, from what is there."""

    def is_source(value: Value) -> bool:
        # Condition 2 of recompute-segments.
        if not turn.is_early(value) or value in keeps:
            return True
        return bool(turn.nbytes(value)) and not start <= _made(value, turn) < stop

    return backward_slice(values, is_source)


def _sources(ops: Sequence[Op]) -> tuple[Value, ...]:
    """What ops read of others."""
    inner = {value for op in ops for value in op.results}
    read = (v for op in ops for v in inputs(op) if v not in inner)
    return tuple(dict.fromkeys(v for v in read if not isinstance(v, Constant)))


def recompute(turn: Turn, parts: Sequence[Again], rw: Rewriter) -> None:
    """Give the readers after the peak what is computed again in front of them."""
    of = {value: part for part in parts for value in part.dropped}
    signals = {
        part.first: signal for part, signal in zip(parts, _signals(turn, parts), strict=True)
    }
    if tuple(turn.region.ops) != turn.ops:
        for op, after in reversed([*pairwise(turn.ops[turn.at :])]):
            rw.move(op, after)
    now: dict[Value, Value] = {}
    narrow = _narrow(turn, sorted(signals))
    for place in range(turn.at, len(turn.ops)):
        op = turn.ops[place]
        for value in list(_read(turn, op)):
            if (part := of.get(value)) is None:
                continue
            for each in (part.outer, part):
                if each is not None and not each.made:
                    first = each.first
                    _begin(each, signals[first], narrow.get(first, ()), now, turn, rw)
            _emit(part, value, op, rw)
            rw.replace(value, part.made[value], lambda use: _is_late(use, turn))


def _is_late(use: Use, turn: Turn) -> bool:
    op = turn.region.ancestor(use.op)
    # Condition 3 of recompute-segments.
    return op is not None and turn.place.get(op, -1) >= turn.at and not op.is_terminator


def _narrow(turn: Turn, firsts: list[int]) -> dict[int, list[Value]]:
    """Of what is made after the peak, and read behind the next part: what is smaller than what XLA
    computes it from, when it is read, and nobody else reads there.
    """
    found: dict[int, list[Value]] = {}
    for op in turn.ops[turn.at :]:
        behind = bisect_right(firsts, turn.place[op])
        if behind == len(firsts) or op.is_terminator:
            continue
        first = firsts[behind]
        for value in op.results:
            arrays = turn.fused.inside.get(value, ()) if _last_read(turn, value) >= first else ()
            ending = [v for v in arrays if v.op in turn.place and _last_read(turn, v) < first]
            if value.nbytes < sum(v.nbytes for v in ending):
                found.setdefault(first, []).append(value)
    return found


def _last_read(turn: Turn, value: Value) -> int:
    readers = (turn.region.ancestor(use.op) for use in value.uses)
    return max((turn.place.get(op, -1) for op in readers if op is not None), default=-1)


def _begin(
    part: Again,
    signal: Value,
    narrow: Sequence[Value],
    now: dict[Value, Value],
    turn: Turn,
    rw: Rewriter,
) -> None:
    """Let what a part starts from wait for a signal, for all that reads it from there on: a copy
    that is laid out otherwise would be made early.  What is narrow is made here.
    """
    reader, latest = turn.ops[part.first], now.get(signal, signal)
    sources, held = _fenced(part, turn), dict[Value, Value]()
    if part.outer is not None:
        for value in (v for v in sources if v not in part.outer.sources):
            _emit(part.outer, value, reader, rw)
        held = {v: part.outer.made[v] for v in sources if v in part.outer.made}
    now_read = [held.get(v, v) for v in sources]
    fenced = [v for v in dict.fromkeys((*now_read, *narrow)) if v is not latest]
    made, same = waiting(rw, fenced, latest, reader)
    fresh = dict(zip(fenced, made, strict=True))
    part.made.update((v, fresh[r]) for v, r in zip(sources, now_read, strict=True) if r in fresh)
    if part.outer is not None:
        part.outer.made.update((v, fresh[r]) for v, r in held.items() if r in fresh)
    after = turn.place[reader]

    def is_behind(use: Use) -> bool:
        op = turn.region.ancestor(use.op)
        return op is not None and turn.place.get(op, -1) >= after and not op.is_terminator

    for old, new in zip([*fenced, latest], (*made, same), strict=True):
        rw.replace(old, new, is_behind)
    now[signal] = same


def _fenced(part: Again, turn: Turn) -> list[Value]:
    """What has to wait, so that all of a part does: the arrays that it starts from, and of what is
    there anyway what ops read that read nothing else.
    """
    found = {value for value in part.sources if turn.is_early(value)}
    free = {value: {value} for value in part.sources if value not in found}
    for op in part.ops:
        read = [v for v in inputs(op) if not isinstance(v, Constant)]
        if not all(value in free for value in read):
            continue
        roots = {root for value in read for root in free[value]}
        if is_free(op):
            free |= dict.fromkeys(op.results, roots)
        else:
            found |= roots
    return [value for value in part.sources if value in found]


def _emit(part: Again, value: Value, before: Op, rw: Rewriter) -> None:
    """Compute a value again before an op, if it has not been."""
    wanted: Set[Op] = set(backward_slice([value], lambda v: v in part.made or v in part.sources))
    rw.clone([op for op in part.ops if op in wanted], part.made, before)


def _signals(turn: Turn, parts: Sequence[Again]) -> Iterator[Value]:
    """What each part waits for: of what its first reader reads, or else of what is made before, the
    value that is at the end of the longest chain of ops.
    """
    depth: dict[Value, int] = {}
    dropped = {value for part in parts for value in part.dropped}
    deepest: list[Value | None] = []
    for op in turn.ops:
        deepest.append(deepest[-1] if deepest else None)
        reached = 1 + max((depth.get(v, 0) for v in inputs(op)), default=-1)
        for value in op.results:
            depth[value] = reached
            last = deepest[-1]
            if (
                value not in dropped
                and can_signal(value)
                and (last is None or reached >= depth[last])
            ):
                deepest[-1] = value
    for part in parts:
        turned, other = deepest[turn.at - 1], deepest[part.first - 1]
        read = [v for v in inputs(turn.ops[part.first]) if v in depth and can_signal(v)]
        read = [v for v in read if v not in dropped]
        best = max(read, key=depth.__getitem__, default=None)
        assert other is not None and turned is not None
        yield best if best is not None and depth[best] > depth[turned] else other
