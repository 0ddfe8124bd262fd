"""A description of arrays that are zero but for one place along some axes, or for several a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxpr_opt.ir.graph import Scan, Value


@dataclass(frozen=True, slots=True)
class Source:
    """An array from which places or factors are read."""

    value: Value
    axes: tuple[int, ...]
    """For each of its axes that is longer than one, which axis of the picked array it is; negative
    ones are inner axes.
    """
    loop: Scan | None = None
    """The loop that streams the picked array, if that reads a row of the source in each step; along
    their axis"""
    along: int = 0

    def moved(self, to: Mapping[int, int]) -> Source:
        """The same if the axes of the picked array have moved."""
        return replace(self, axes=tuple(to[d] for d in self.axes))


@dataclass(frozen=True, slots=True)
class Place:
    """Where an array is not zero along one axis: at a number, counted from `offset`."""

    axis: int
    number: Source
    """It may be read at the place along another axis."""
    offset: int
    most: int | None = None
    """If numbers are clamped before that: the greatest one."""


@dataclass(frozen=True, slots=True)
class Factor:
    """What the number at a place is multiplied by."""

    source: Source
    leaks: bool
    """Whether the zeros, too, are multiplied by it: they are NaN where it is not finite."""
    negated: bool = False
    """Of truth values: whether the number is zero where it is true."""
    outside: frozenset[int] = frozenset()
    """The inner axes along which all was summed up before it was multiplied by this."""


@dataclass(frozen=True, slots=True)
class Picked:
    """An array that is `elsewhere` but for one place along some axes, and there a product; or the
    sum of such arrays along inner axes -1, -2, ...
    """

    places: tuple[Place, ...]
    factors: tuple[Factor, ...] = ()
    number: Any = 1
    """What the factors are multiplied by."""
    elsewhere: Any = 0
    inner: tuple[int, ...] = ()
    """The sizes of inner axes: a row has so many places."""

    @property
    def axes(self) -> frozenset[int]:
        """The axes along which there is one place."""
        return frozenset(place.axis for place in self.places)

    @property
    def inner_axes(self) -> frozenset[int]:
        """The axes along which such arrays are summed up."""
        return frozenset(-1 - d for d in range(len(self.inner)))

    def rows(self, axes: Iterable[int]) -> frozenset[int]:
        """The axes along which rows differ in what they read of an array with these axes."""
        at = {place.axis: place.number.axes for place in self.places}
        numbers = frozenset(e for d in axes for e in at.get(d, (d,)))
        return self.rows(numbers) if numbers & self.axes else numbers

    @property
    def sources(self) -> tuple[Source, ...]:
        """All arrays that are read."""
        return (*(p.number for p in self.places), *(f.source for f in self.factors))

    def moved(self, to: Mapping[int, int]) -> Picked | None:
        """The same with its axes where `to` says; inner axes stay, if it says nothing of them."""
        to = {d: d for d in self.inner_axes} | {**to}
        axes = {*self.axes}.union(*(source.axes for source in self.sources))
        if not axes <= to.keys():
            return None
        places = (
            replace(place, axis=to[place.axis], number=place.number.moved(to))
            for place in self.places
        )
        factors = (
            replace(f, source=f.source.moved(to), outside=frozenset(to[d] for d in f.outside))
            for f in self.factors
        )
        return replace(self, places=tuple(places), factors=tuple(factors))

    def summed(self, sizes: Mapping[int, int]) -> Picked | None:
        """The sum along axes of these sizes, if there is more than one place along none of them:
        they become inner axes.
        """
        # Condition 1 of read-one-hot-rows.
        if self.axes & sizes.keys():
            return None
        read = {d for source in self.sources for d in source.axes} | self.axes
        first = len(self.inner)
        others = sorted(d for d in range(max(read, default=0) + 1) if d not in sizes)
        to = {d: at for at, d in enumerate(others)}
        to |= {d: -1 - first - at for at, d in enumerate(sizes)}
        found = self.moved(to)
        return None if found is None else replace(found, inner=(*self.inner, *sizes.values()))
