"""Divide a line of ops into segments that stay within a memory bound in the least time.

The line is divided at some of its cuts. For each segment one of several ways is chosen: the bytes
that it holds from then on, the bytes alive while it is recomputed, and the seconds that takes.
Dynamic programming keeps, at each cut, the way of least seconds, where the bytes held from then on
have a price; for each bound some prices are tried, all together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxpr_opt.ir.graph import Value

Matrix = NDArray[np.float64]


class Way(NamedTuple):
    """One way to treat a segment.  For each pair of cuts: the bytes held from one to the other, the
    bytes added while it is recomputed, and how long recomputing takes.
    """

    kept: Set[Value] | None
    held: Matrix
    inside: Matrix
    seconds: Matrix
    inner: Sequence[int] = ()
    """Cuts at which a segment is divided again, when it is recomputed."""


Ways = Sequence[Sequence[Way]]
"""For each price, the ways to choose from."""


class SegmentStep(NamedTuple):
    """A segment on the way to a cut, and what that way takes so far."""

    start: int
    stop: int
    kept: Set[Value] | None
    peak: float
    seconds: float
    inner: Sequence[int] = ()
    """Cuts in it, where it is divided again."""


def shortest(
    ways: Ways,
    others: Matrix,
    prices: Sequence[float],
    bounds: Sequence[float],
) -> Iterator[list[SegmentStep]]:
    """The best way to the last cut for each price, and the ways it may choose from, and for each
    bound, where there is one.
    """
    table = _Table(ways, others, prices, bounds)
    for stop in range(1, table.count):
        table.reach(stop)
    for price in range(len(prices)):
        for bound in range(len(bounds)):
            if table.total[price, bound, -1] < inf:
                yield table.path(price, bound)


def twice(way: Way, bound: float) -> Way | None:
    """The way to divide each segment again when it is recomputed, into parts that add at most so
    many bytes, and hold least; None if there is none.

    A part is recomputed from what the parts before it hold in the meantime, all but the last of
    them once more.
    """
    size = len(way.held)
    held, before = np.full(size, inf), np.zeros(size, int)
    held[0] = 0.0
    for stop in range(1, size):
        total = np.where(way.inside[:stop, stop] <= bound, held[:stop] + way.held[:stop, stop], inf)
        before[stop] = total.argmin()
        held[stop] = total[before[stop]]
    if held[-1] == inf:
        return None
    cuts = [size - 1]
    while cuts[-1]:
        cuts.append(int(before[cuts[-1]]))
    cuts.reverse()
    starts, stops = np.array(cuts[:-1]), np.array(cuts[1:])
    parts = way.held[starts, stops], way.inside[starts, stops], way.seconds[starts, stops]
    inside, seconds = np.full((2, size, size), inf)
    for a in range(len(starts)):
        for b in range(a + 2, len(cuts)):
            first, last, some = starts[a], stops[b - 1], slice(a, b)
            earlier = np.cumsum(parts[0][some]) - parts[0][some]
            there = earlier - way.held[first, last] + way.held[starts[some], last]
            inside[first, last] = (there + parts[1][some]).max()
            seconds[first, last] = way.seconds[first, last] + parts[2][a : b - 1].sum()
    return Way(way.kept, way.held, inside, seconds, cuts)


class _Table:
    """For each price, bound and cut: the best way to come there."""

    def __init__(
        self,
        ways: Ways,
        others: Matrix,
        prices: Sequence[float],
        bounds: Sequence[float],
    ) -> None:
        self.ways, self.count = ways, len(others)
        stacked = [np.stack([(w.held, w.inside, w.seconds) for w in some]) for some in ways]
        held, inside, seconds = np.moveaxis(np.stack(stacked), 2, 0)[:, :, None]
        self.by_held, self.by_inside, self.by_seconds = held, inside + others, seconds
        self.prices = np.array(prices).reshape(-1, 1, 1, 1)
        self.bounds = np.array(bounds).reshape(1, -1, 1, 1)
        shape = len(prices), len(bounds), self.count
        self.total, self.held, self.peak, self.seconds = np.zeros((4, *shape))
        self.total[..., 1:] = inf
        self.start, self.way = np.zeros((2, *shape), int)

    def reach(self, stop: int) -> None:
        """Find the best way to a cut from those to the cuts before it.

        After the last segment comes no other: what it holds has no price.
        """
        before = (slice(None), slice(None), None, slice(stop))
        of = (..., slice(stop), stop)
        price = 0.0 if stop == self.count - 1 else self.prices
        held = self.held[before] + self.by_held[of]
        peak = np.maximum(self.peak[before], held + self.by_inside[of])
        total = self.total[before] + self.by_seconds[of] + price * self.by_held[of]
        total = np.where(peak <= self.bounds, total, inf)
        best = total.reshape(*total.shape[:2], -1).argmin(-1)
        self.way[..., stop], self.start[..., stop] = way, start = np.divmod(best, stop)
        chosen = (*np.indices(best.shape), way, start)
        self.total[..., stop] = total[chosen]
        self.held[..., stop], self.peak[..., stop] = held[chosen], peak[chosen]
        priced, bounded = np.indices(best.shape)
        self.seconds[..., stop] = (
            self.seconds[priced, bounded, start] + self.by_seconds[priced, 0, way, start, stop]
        )

    def path(self, price: int, bound: int) -> list[SegmentStep]:
        """The segments of the best way to the last cut, in order."""
        steps, stop = list[SegmentStep](), self.count - 1
        while stop:
            at = price, bound, stop
            way, start = self.ways[price][self.way[at]], int(self.start[at])
            figures = float(self.peak[at]), float(self.seconds[at])
            inner = tuple(cut for cut in way.inner if start < cut < stop)
            steps.append(SegmentStep(start, stop, way.kept, *figures, inner))
            stop = start
        return steps[::-1]
