"""Which arrays that wait for a later reader are dropped, and recomputed before it.

The ops before the peak (`analysis.liveness.across_peak`) are divided into segments. Each segment
stores what later segments read, so that a segment can be recomputed by itself when its first reader
comes, and only one segment is alive at a time. The cut between two segments decides what is stored,
so cuts are searched where few arrays cross. Of the arrays in a segment, one of these is stored:

- all of them: nothing is recomputed;
- those that take longer to recompute than their bytes are worth, from what is stored before;
- none;
- none, and when the segment is recomputed it is divided again: its parts store what later parts
  read, until each is recomputed once more. That is looked for below what the others come to.

The memory at a segment is what segments have stored so far, the arrays of that one segment, and
what is made after the peak. At the last segments everything else is stored, at the first nothing
is, so the first may be longer. Dynamic programming (`analysis.liveness.segmenting`) finds the
segments that stay within a bound in the least time, for many bounds, and for some prices of the
bytes stored between segments. The cost model chooses among these `droppings`: the one that is worth
its seconds, or the fastest that stores a given fraction.

Sources: Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174); Beaumont
et al., "Optimal checkpointing for heterogeneous chains" (arXiv:1911.13214), whose chain is here any
straight line of ops.
"""

from __future__ import annotations

import functools
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxpr_opt.analysis.liveness.across_peak import Turn, is_free, turn
from jaxpr_opt.analysis.liveness.segmenting import (
    Matrix,
    SegmentStep,
    Way,
    Ways,
    shortest,
    twice,
)
from jaxpr_opt.analysis.values.rounding import compares_rounded
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.facts import copied_from, remembered
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import is_arithmetic, is_cheap, is_repeatable

Counts = NDArray[np.int_]


class Segment(NamedTuple):
    """Ops from one place up to another; of what they make, what is kept whatever reads it."""

    start: int
    stop: int
    kept: Set[Value] | None
    """None where all is kept."""
    inner: tuple[int, ...] = ()
    """Places at which it is divided again, when it is computed again."""


@dataclass(frozen=True, slots=True, eq=False)
class Dropping:
    """What is computed again, by segments in order."""

    turn: Turn
    segments: tuple[Segment, ...]
    nbytes: int
    """Temporary memory at the peak, as far as is known."""
    before: int
    """The same if nothing is dropped."""
    seconds: float
    """What computing it again takes."""

    def at(self, end: Op) -> Dropping:
        """The same in the region that ends there: this one, or a copy of it."""
        region = end.region
        assert region is not None
        if region is self.turn.region:
            return self
        copy = self.turn.copied_to(region)
        return replace(self, turn=copy, segments=tuple(map(self._copied_to(copy), self.segments)))

    def _copied_to(self, copy: Turn) -> Callable[[Segment], Segment]:
        places = self.turn.place

        def copied(segment: Segment) -> Segment:
            if segment.kept is None:
                return segment
            kept = ((places[v.op], v.position) for v in segment.kept if v.op is not None)
            return segment._replace(kept={copy.ops[i].results[n] for i, n in kept})

        return copied


def cheapest(end: Op) -> Dropping | None:
    """The values to drop in the region that ends here, by the cost model; None where keeping all of
    them costs least.
    """
    best = _cheapest(droppings(end))
    return None if best is None else best.at(end)


def _cheapest(found: Sequence[Dropping]) -> Dropping | None:
    model = cost_model()
    if model.part is not None:
        return within(found, model.part)
    best = min(found, key=lambda each: each.seconds + model.held(each.nbytes), default=None)
    if best is None or best.seconds + model.held(best.nbytes) >= model.held(best.before):
        return None
    return best


def within(found: Sequence[Dropping], part: float) -> Dropping | None:
    """The fastest that holds a part of what is held if nothing is dropped, or else the smallest."""
    if part >= 1 or not found:
        return None
    return next((each for each in found if each.nbytes / each.before <= part), found[-1])


@remembered
def droppings(end: Op) -> tuple[Dropping, ...]:
    """The droppings worth a look in the region that ends here, the fastest first; each takes less
    memory than the one before it.  A copied region has those of its original.
    """
    if (original := copied_from(end)) is not None:
        return droppings(original)
    assert end.region is not None
    found = turn(end.region)
    return tuple(_Search(found).found()) if found.readers else ()


def seconds_again(op: Op) -> float:
    """Seconds to compute an op once more; infinite if it must not be, or who knows how long."""
    # Condition 1 of recompute-segments.
    if not is_repeatable(op) or compares_rounded(op):
        return inf
    model = cost_model()
    return model.elementwise(op.result) if is_arithmetic(op) else model.repeated_apart(op)


class _Search:
    """Segments of what a turn makes before its peak."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.again = [seconds_again(op) for op in turn.ops[: turn.at]]
        single = (op for op, s in zip(turn.ops, self.again, strict=False) if s == inf)
        self.fixed = _narrowed(turn, {v for op in single for v in op.results}) | _results(turn)
        self.needed = _needed(turn, self.fixed)
        self.last = self._last_reads()
        self.cuts = self._narrow()
        self.others = self._others()
        self.spans = self._spans()

    def found(self) -> Iterator[Dropping]:
        """Segments that take ever less memory, the fastest first."""
        everything, nothing = self._way(None), self._way(self.fixed)
        plain = everything.held[0, -1] + self.others[0, -1]
        seconds = sum(self.again[i] for i in self.needed)
        prices, kept = self._worth(seconds / max(plain, 1.0))
        ways: list[Sequence[Way]] = [(everything, self._way(each), nothing) for each in kept]
        paths = self._paths(ways, prices, plain)
        if inner := [*self._twice(nothing)]:
            ways = [(*each, *inner) for each in ways]
            least = min((path[-1].peak for path in paths), default=plain)
            paths += self._paths(ways, prices, limits.NEXT_BOUND * least)
        least = plain
        for path in sorted(paths, key=_seconds_first):
            if path[-1].peak <= limits.NEXT_LEAST * least:
                least = path[-1].peak
                segments = tuple(self._segments(path))
                yield Dropping(self.turn, segments, round(least), round(plain), path[-1].seconds)

    def _paths(self, ways: Ways, prices: list[float], most: float) -> list[list[SegmentStep]]:
        """The best segments within each of some bounds, each a part of the last; and within some
        closer ones below the least that is found so.
        """
        bounds = [most * limits.NEXT_BOUND**power for power in range(limits.BOUNDS)]
        found = list(shortest(ways, self.others, prices, bounds))
        least = min((path[-1].peak for path in found), default=0)
        bounds = [least * limits.LAST_BOUND**power for power in range(limits.BOUNDS // 4)]
        return [*found, *(shortest(ways, self.others, prices, bounds) if found else ())]

    def _twice(self, way: Way) -> Iterator[Way]:
        """A way whose segments are divided again, into parts of some sizes."""
        least = float(np.diagonal(way.inside, 1).max())
        for each in limits.PARTS_OF_A_SEGMENT:
            found = twice(way, each * least)
            if found is not None:
                yield found

    def _last_reads(self) -> dict[Value, int]:
        """Arrays, and where an op that may be computed again reads them last before the peak."""
        last: dict[Value, int] = dict.fromkeys(self.turn.readers, -1)
        for i in self.needed:
            arrays = self.turn.fused.read.get(self.turn.ops[i], ())
            last.update((array, i) for array in arrays if self.turn.is_early(array))
        return last

    def _narrow(self) -> list[int]:
        """Places to cut at: of equal parts of what is kept, each where least crosses it."""
        crossing, kept = [0] * (self.turn.at + 2), [0] * (self.turn.at + 2)
        for value, last in self.last.items():
            made = self._made(value)
            crossing[made + 1] += self.turn.nbytes(value)
            crossing[max(last, made) + 1] -= self.turn.nbytes(value)
            kept[made + 1] += self.turn.nbytes(value) if value in self.turn.readers else 0
        width, filled = list(accumulate(crossing)), list(accumulate(kept))
        parts = [filled[-1] * part / limits.CUTS for part in range(limits.CUTS + 1)]
        bounds = [bisect_right(filled, part, hi=self.turn.at) for part in parts]
        places = (range(a, b) for a, b in pairwise(bounds) if a < b)
        found = {min(reversed(each), key=width.__getitem__) for each in places}
        return [*sorted({0, *found} - {self.turn.at}), self.turn.at]

    def _made(self, value: Value) -> int:
        assert value.op is not None
        return self.turn.place[value.op]

    def _cells(self, places: Sequence[int] | Counts) -> Counts:
        """The last cut that is not behind each place."""
        return np.searchsorted(self.cuts, places, side="right") - 1

    def _others(self) -> Matrix:
        """Bytes of the other values that are made after the peak and are there while a segment is
        read.
        """
        most = np.zeros(len(self.cuts))
        cells = self._cells([self._made(value) for value in self.turn.readers])
        for cell, places in zip(cells, self.turn.readers.values(), strict=True):
            there = max(self.turn.others[places[0] : places[-1] + 1])
            most[cell] = max(most[cell], there)
        return np.array(
            [[0.0] * (a + 1) + list(np.maximum.accumulate(most[a:-1])) for a in range(len(most))]
        )

    def _worth(self, unit: float) -> tuple[list[float], list[Set[Value]]]:
        """Prices of a byte, and the values that are worth them: between two prices another is tried
        where most bytes are worth the one and not the other.
        """
        every = [price * unit for price in limits.PRICES]

        @functools.cache
        def dear(number: int) -> Set[Value]:
            return self._dear(every[number])

        @functools.cache
        def nbytes(number: int) -> int:
            return sum(map(self.turn.nbytes, dear(number)))

        tried = [0, len(every) - 1]
        while len(tried) < limits.WORTHS:
            gaps = ((nbytes(a) - nbytes(b), a, b) for a, b in pairwise(tried) if b - a > 1)
            most, a, b = max(gaps, default=(0, 0, 0))
            if most <= 0:
                break
            insort(tried, (a + b) // 2)
        return [every[number] for number in tried], [dear(number) for number in tried]

    def _dear(self, price: float) -> Set[Value]:
        """Values that are worth their bytes: making each of them again takes longer, from those
        before it, and from what is made again anyway, because it is read itself.
        """
        dear, seconds = set(self.fixed), dict[Value, float]()
        for i in self.needed:
            op = self.turn.ops[i]
            needed = self.again[i] + sum(seconds.get(v, 0.0) for v in self.turn.reads(op))
            for value in op.results:
                worth = price * self.turn.nbytes(value)
                is_dear = needed > worth > 0
                dear |= {value} if is_dear else set()
                seconds[value] = 0.0 if is_dear or value in self.turn.readers else needed
        return dear

    def _spans(self) -> tuple[Counts, Counts, Counts, Counts]:
        """Of each array: the cut before it is made, that before it is read last, -1 if there is no
        such read, its bytes, and whether it is read after the peak.
        """
        values, last = list(self.last), np.array(list(self.last.values()), int)
        made = self._cells([self._made(value) for value in values])
        end = np.where(last >= 0, self._cells(last), -1)
        nbytes = np.array([self.turn.nbytes(value) for value in values], int)
        return made, end, nbytes, np.array([value in self.turn.readers for value in values], bool)

    def _way(self, kept: Set[Value] | None) -> Way:
        made, end, nbytes, is_read = self.spans
        size = len(self.cuts)
        is_kept = is_read
        if kept is not None:
            is_kept = np.array([value in kept for value in self.last], bool)
        held = _rectangles(size, made, np.where(is_kept, size, end + 1), nbytes)
        is_again = is_read & ~is_kept
        begin = np.maximum(made, end)[is_again]
        inside = _rectangles(size, made[is_again], size, nbytes[is_again], begin)
        places = np.array([] if kept is None else _needed(self.turn, kept), int)
        seconds = np.array(self.again)[places]
        return Way(kept, held, inside, _rectangles(size, self._cells(places), size, seconds))

    def _segments(self, path: list[SegmentStep]) -> Iterator[Segment]:
        """The segments of a way to the last cut, in order."""
        for step in path:
            inner = tuple(self.cuts[cut] for cut in step.inner)
            yield Segment(self.cuts[step.start], self.cuts[step.stop], step.kept, inner)


def _seconds_first(path: list[SegmentStep]) -> tuple[float, float]:
    return path[-1].seconds, path[-1].peak


def _rectangles(
    size: int,
    last: Counts,
    stop: Counts | int,
    numbers: NDArray[Any],
    before: Counts | None = None,
) -> Matrix:
    """A matrix over two cuts: the sum of numbers, each of which counts where the first cut is at
    most `last`, and the second is behind `before`, which is `last` if it is not given, and before
    `stop`.
    """
    start = (last if before is None else before) + 1
    stop = np.broadcast_to(stop, start.shape)
    is_there = start < stop
    last, start, stop, numbers = (each[is_there] for each in (last, start, stop, numbers))
    corners = np.zeros((size + 1, size + 1))
    np.add.at(corners[0], start, numbers)
    np.subtract.at(corners[0], stop, numbers)
    np.subtract.at(corners, (last + 1, start), numbers)
    np.add.at(corners, (last + 1, stop), numbers)
    return np.asarray(corners.cumsum(0).cumsum(1)[:-1, :-1])


def _results(turn: Turn) -> set[Value]:
    """The arrays that stay to the end of a region."""
    return {array for value in turn.region.outputs for array in turn.arrays(value)}


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
