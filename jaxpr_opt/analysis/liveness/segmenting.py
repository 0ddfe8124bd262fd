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


Ways = Sequence[Sequence[Way]]
"""For each price, the ways to choose from."""


class SegmentStep(NamedTuple):
    """A segment on the way to a cut, and what that way takes so far."""

    start: int
    stop: int
    kept: Set[Value] | None
    peak: float
    seconds: float


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
        stacked = [np.stack(each) for each in ([w[1:] for w in some] for some in ways)]
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
            kept = self.ways[price][self.way[at]].kept
            figures = float(self.peak[at]), float(self.seconds[at])
            steps.append(SegmentStep(int(self.start[at]), stop, kept, *figures))
            stop = int(self.start[at])
        return steps[::-1]
