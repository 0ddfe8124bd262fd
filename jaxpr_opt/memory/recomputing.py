"""Recompute dropped arrays before the ops that read them (`liveness.rematerialization`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

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
    made: dict[Value, Value] = field(default_factory=dict)
    """Its values, as they are after the peak."""


def again(found: Dropping) -> list[Again]:
    """The ops that are computed again, by segment."""
    turn, kept = found.turn, set[Value]()
    late: list[dict[Value, int]] = [{} for _ in found.segments]
    for place in range(turn.at, len(turn.ops)):
        for value in _read(turn, turn.ops[place]):
            if (number := _segment(value, found)) is not None:
                late[number].setdefault(value, place)
    each = zip(reversed(found.segments), reversed(late), strict=True)
    made = (_again(turn, segment, kept, values) for segment, values in each)
    return [part for part in made if part is not None]


def _segment(value: Value, found: Dropping) -> int | None:
    """The last segment that does not keep an array which a value is computed from."""
    turn, starts = found.turn, [segment.start for segment in found.segments]
    numbers = []
    for array in turn.arrays(value):
        assert array.op is not None
        number = bisect_right(starts, turn.place[array.op]) - 1
        kept = found.segments[number].kept
        if turn.nbytes(array) and kept is not None and array not in kept:
            numbers.append(number)
    return max(numbers, default=None)


def _read(turn: Turn, op: Op) -> Iterator[Value]:
    """The values that an op after the peak reads, of those that are made before it."""
    return (v for v in ([] if op.is_terminator else inputs(op)) if turn.is_early(v))


def _again(
    turn: Turn, segment: Segment, kept: set[Value], late: Mapping[Value, int]
) -> Again | None:
    """What is computed again of a segment, for what is read of it late, and where first; `kept`
    grows by what it starts from.
    """
    if segment.kept is None:
        return None
    keeps = kept | segment.kept

    def is_source(value: Value) -> bool:
        # Condition 2 of recompute-segments.
        if not turn.is_early(value) or value in keeps:
            return True
        assert value.op is not None
        place = turn.place[value.op]
        return bool(turn.nbytes(value)) and not segment.start <= place < segment.stop

    dropped = [value for value in late if not keeps.issuperset(turn.arrays(value))]
    ops = backward_slice(dropped, is_source)
    if not ops:
        return None
    inner = {value for op in ops for value in op.results}
    read = (v for op in ops for v in inputs(op) if v not in inner)
    sources = tuple(dict.fromkeys(v for v in read if not isinstance(v, Constant)))
    kept |= {value for value in sources if turn.is_early(value)}
    return Again(tuple(ops), sources, tuple(dropped), min(late[value] for value in dropped))


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
            if not part.made:
                _begin(part, signals[part.first], narrow.get(part.first, []), now, turn, rw)
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
    sources = _fenced(part, turn)
    fenced = [v for v in dict.fromkeys((*sources, *narrow)) if v is not latest]
    made, same = waiting(rw, fenced, latest, reader)
    part.made.update((v, m) for v, m in zip(fenced, made, strict=True) if v in sources)
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
