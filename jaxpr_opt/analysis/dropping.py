"""Which arrays that wait for a later reader are dropped, and computed again in front of it.

What is made before the peak (`analysis.turn`) is divided into segments.  Of each segment is kept
what later segments read, so that it can be computed again by itself when its first reader comes,
and no two segments are there at once.  Where a segment is cut decides what that is: cuts are looked
for where little crosses them.  Of what is in a segment is kept

- all of it: nothing is computed again;
- what takes longer to compute again than its bytes are worth, from what is kept before it;
- nothing.

The memory that counts is what segments have kept so far, one segment's arrays, and what is made
after the peak: of the last segments all others are kept, of the first nothing else is, so the first
may be longer.  Segments that stay within a bound for the least price are found by dynamic
programming; some bounds are tried, each well below what the last one came to.

Sources: Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174); Beaumont
et al., "Optimal checkpointing for heterogeneous chains" (arXiv:1911.13214), whose chain is here any
straight line of ops.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxpr_opt.analysis.inputs import inputs
from jaxpr_opt.analysis.turn import Turn, array_of, is_free, nbytes
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.ir import Op, Value
from jaxpr_opt.engine.traits import is_arithmetic, is_cheap, is_repeatable

Matrix = NDArray[np.float64]


class Segment(NamedTuple):
    """Ops from one place up to another; of what they make, what is kept whatever reads it."""

    start: int
    stop: int
    kept: Set[Value] | None
    """None where all is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Dropping:
    """What is computed again, by segments in order."""

    turn: Turn
    segments: tuple[Segment, ...]
    nbytes: int
    """Temporary memory at the peak, as far as is known."""
    before: int
    """The same if nothing is dropped."""


def cheapest(turn: Turn) -> Dropping | None:
    """What to drop at the price that memory has; None where keeping everything costs least."""
    if not turn.readers:
        return None
    return _Search(turn).best()


def seconds_again(op: Op) -> float:
    """Seconds to compute an op once more; infinite if it must not be, or who knows how long."""
    if not is_repeatable(op):
        return inf
    model = cost_model()
    return model.elementwise(op.result) if is_arithmetic(op) else model.repeated_apart(op)


class _Way(NamedTuple):
    """What may be done with a segment: for each two cuts, what is held from the one to the other,
    what more is there when it is computed again, and how long that takes.
    """

    kept: Set[Value] | None
    held: Matrix
    inside: Matrix
    seconds: Matrix


class _State(NamedTuple):
    """The best way to come to a cut."""

    price: float
    held: float
    peak: float
    seconds: float
    before: int
    way: int


class _Search:
    """Segments of what a turn makes before its peak."""

    def __init__(self, turn: Turn) -> None:
        self.turn, self.model = turn, cost_model()
        self.again = [seconds_again(op) for op in turn.ops[: turn.at]]
        single = (op for op, s in zip(turn.ops, self.again, strict=False) if s == inf)
        self.fixed = _narrowed(turn, {v for op in single for v in op.results}) | _results(turn)
        self.needed = _needed(turn, self.fixed)
        self.last = self._last_reads()
        self.cuts = self._narrow()
        self.others = self._others()

    def best(self) -> Dropping | None:
        """The segments that cost least, if less than keeping everything."""
        ways = [self._way(None), self._way(self._dear()), self._way(self.fixed)]
        plain = ways[0].held[0, -1] + self.others[0, -1]
        bound, least, chosen = plain, self.model.held(plain), None
        while (found := self._within(bound, ways)) is not None:
            end = found[-1]
            assert end is not None
            if (price := end.seconds + self.model.held(end.peak)) < least:
                least, chosen = price, found
            bound = limits.NEXT_BOUND * min(bound, end.peak)
        if chosen is None or chosen[-1] is None:
            return None
        segments = tuple(self._segments(chosen, ways))
        return Dropping(self.turn, segments, round(chosen[-1].peak), round(plain))

    def _last_reads(self) -> dict[Value, int]:
        """Arrays, and where an op that may be computed again reads them last before the peak."""
        last: dict[Value, int] = dict.fromkeys(self.turn.readers, -1)
        for i in self.needed:
            last.update(dict.fromkeys(self.turn.reads(self.turn.ops[i]), i))
        return last

    def _narrow(self) -> list[int]:
        """Places to cut at: of equal parts of what is kept, each where least crosses it."""
        crossing, kept = [0] * (self.turn.at + 2), [0] * (self.turn.at + 2)
        for value, last in self.last.items():
            made = self._made(value)
            crossing[made + 1] += nbytes(value)
            crossing[max(last, made) + 1] -= nbytes(value)
            kept[made + 1] += nbytes(value) if value in self.turn.readers else 0
        width, filled = list(accumulate(crossing)), list(accumulate(kept))
        parts = [filled[-1] * part / limits.CUTS for part in range(limits.CUTS + 1)]
        bounds = [bisect_right(filled, part, hi=self.turn.at) for part in parts]
        places = (range(a, b) for a, b in pairwise(bounds) if a < b)
        found = {min(reversed(each), key=width.__getitem__) for each in places}
        return [*sorted({0, *found} - {self.turn.at}), self.turn.at]

    def _made(self, value: Value) -> int:
        assert value.op is not None
        return self.turn.place[value.op]

    def _cell(self, place: int) -> int:
        """The last cut that is not behind a place."""
        return bisect_right(self.cuts, place) - 1

    def _others(self) -> Matrix:
        """What is there that was made after the peak, while a segment is read."""
        most = np.zeros(len(self.cuts))
        for value, places in self.turn.readers.items():
            cell = self._cell(self._made(value))
            there = max(self.turn.others[places[0] : places[-1] + 1])
            most[cell] = max(most[cell], there)
        return np.array(
            [[0.0] * (a + 1) + list(np.maximum.accumulate(most[a:-1])) for a in range(len(most))]
        )

    def _dear(self) -> Set[Value]:
        """Values that are worth their bytes: making each of them again, from those before it, takes
        longer.
        """
        dear, seconds = set(self.fixed), dict[Value, float]()
        for i in self.needed:
            op = self.turn.ops[i]
            needed = self.again[i] + sum(seconds.get(v, 0.0) for v in self.turn.reads(op))
            for value in op.results:
                worth = self.model.held(nbytes(value))
                seconds[value] = needed if needed <= worth or not worth else 0.0
                dear |= {value} if needed > worth > 0 else set()
        return dear

    def _way(self, kept: Set[Value] | None) -> _Way:
        size = len(self.cuts)
        held, inside, seconds = (_Rectangles(size) for _ in range(3))
        for value, last in self.last.items():
            cell, end = self._cell(self._made(value)), self._cell(last) if last >= 0 else -1
            is_read = value in self.turn.readers
            if is_read if kept is None else value in kept:
                held.add(cell, cell + 1, size, nbytes(value))
                continue
            held.add(cell, cell + 1, end + 1, nbytes(value))
            if is_read:
                inside.add(cell, max(cell, end) + 1, size, nbytes(value))
        for i in [] if kept is None else _needed(self.turn, kept):
            seconds.add(self._cell(i), self._cell(i) + 1, size, self.again[i])
        return _Way(kept, held.total(), inside.total(), seconds.total())

    def _within(self, bound: float, ways: Sequence[_Way]) -> list[_State | None] | None:
        """The best way to each cut within so many bytes; None if there is none to the last."""
        found: list[_State | None] = [_State(0.0, 0.0, 0.0, 0.0, 0, 0)]
        price, held = [np.full(len(self.cuts), inf), np.zeros(len(self.cuts))]
        price[0] = 0.0
        held_by = np.stack([way.held for way in ways])
        inside = np.stack([way.inside for way in ways]) + self.others
        seconds = np.stack([way.seconds for way in ways])
        worth = self.model.held(1.0) * held_by
        worth[:, :, -1] = 0.0  # after the last segment comes no other: its bound is all that counts
        for b in range(1, len(self.cuts)):
            holds = held[:b] + held_by[:, :b, b]
            peaks = holds + inside[:, :b, b]
            total = price[:b] + seconds[:, :b, b] + worth[:, :b, b]
            total = np.where(peaks <= bound, total, inf)
            way, a = divmod(int(total.argmin()), b)
            before = found[a]
            if total[way, a] == inf or before is None:
                found.append(None)
                continue
            peak = max(before.peak, peaks[way, a])
            took = before.seconds + seconds[way, a, b]
            found.append(_State(total[way, a], holds[way, a], peak, took, a, way))
            price[b], held[b] = total[way, a], holds[way, a]
        return None if found[-1] is None else found

    def _segments(self, found: Sequence[_State | None], ways: Sequence[_Way]) -> Iterator[Segment]:
        """The segments on the way to the last cut, in order."""
        path, b = list[Segment](), len(self.cuts) - 1
        while b and (state := found[b]) is not None:
            path.append(Segment(self.cuts[state.before], self.cuts[b], ways[state.way].kept))
            b = state.before
        return reversed(path)


class _Rectangles:
    """A matrix over two cuts that numbers are added to, a rectangle at a time."""

    def __init__(self, size: int) -> None:
        self.corners = np.zeros((size + 1, size + 1))

    def add(self, last: int, start: int, stop: int, number: float) -> None:
        """Add a number where the first cut is at most `last`, the second in ``start..stop - 1``."""
        if start < stop:
            self.corners[0, start] += number
            self.corners[0, stop] -= number
            self.corners[last + 1, start] -= number
            self.corners[last + 1, stop] += number

    def total(self) -> Matrix:
        return np.asarray(self.corners.cumsum(0).cumsum(1)[:-1, :-1])


def _results(turn: Turn) -> set[Value]:
    """What is there to the end."""
    return {array_of(value) for value in turn.region.outputs}


def _narrowed(turn: Turn, kept: Set[Value]) -> set[Value]:
    """Values that must be kept, if read again, and what is smaller and made of such values element
    by element: a mask, of random bits.
    """
    found, roots = set(kept), {value: {value} for value in kept}
    for op in turn.ops[: turn.at]:
        read = [value for value in inputs(op) if turn.is_early(value)]
        if not (is_cheap(op) or is_free(op)) or any(value not in roots for value in read):
            continue
        made_of = set[Value]().union(*(roots[value] for value in read))
        is_less = op.result.nbytes < sum(v.nbytes for v in made_of)
        found |= {op.result} if is_less else set()
        roots[op.result] = {op.result} if is_less else made_of
    return found


def _needed(turn: Turn, kept: Set[Value]) -> list[int]:
    """The places of ops before the peak that what is read after it is made by, where some values
    are kept, in order.
    """
    wanted = {value for value in turn.readers if value not in kept}
    found = []
    for i in range(turn.at - 1, -1, -1):
        op = turn.ops[i]
        if not wanted.isdisjoint(op.results):
            found.append(i)
            wanted.update(v for v in inputs(op) if turn.is_early(v) and v not in kept)
    return found[::-1]
