"""Sums of arrays that are zero but for one place a row: reads, and rows that are added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.masks.picked_arrays import Factor, Place, Source
from jaxpr_opt.analysis.masks.picked_sums import PickedSum
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.residual_transfer import streamed
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Value
from jaxpr_opt.ir.rewriter import Rewriter

Part = tuple[jax.Array, tuple[int, ...]]
"""An array, and the axis of what is summed that each of its axes is."""

Numbers = Mapping[int, Part]
"""The place of each row along axes along which there is one."""

SCATTERS: Mapping[str, Callable[..., jax.Array]] = {
    "add": lax.scatter_add, "max": lax.scatter_max, "min": lax.scatter_min, "or": lax.scatter_max,
}  # fmt: skip
REDUCED: Mapping[str, Callable[..., jax.Array]] = {
    "add": jnp.sum, "max": jnp.max, "min": jnp.min, "or": jnp.any,
}  # fmt: skip


def read(source: Source, rw: Rewriter) -> Value:
    """A source, in the step that reads it."""
    if source.loop is None:
        return source.value
    along = source.along
    moved = source.value
    if along:
        moved = rw.insert(lambda v: jnp.moveaxis(v, along, 0), moved, before=source.loop)
    return streamed(moved, source.loop, rw)


@dataclass(frozen=True)
class SumOfPlaces:
    """How what is picked is summed up."""

    sum: PickedSum
    dtype: np.dtype[Any]
    """Of the result."""
    are_dropped: bool = False
    """Whether nothing comes of what is read at a place that is out of range."""

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """The axes of the result."""
        return tuple(d for d in range(len(self.sum.shape)) if d not in self.sum.summed)

    @cached_property
    def written(self) -> tuple[Place, ...]:
        """The places that are places of the result."""
        return tuple(p for p in self.sum.picked.places if p.axis not in self.sum.summed)

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """The axes along which each row is written to a place of its own."""
        return tuple(sorted(self.sum.picked.rows(p.axis for p in self.written)))

    def factors(self, values: Sequence[jax.Array], numbers: Numbers) -> list[Part]:
        """Each factor at the places, without the axes along which there is one place."""
        found = []
        for factor, value in zip(self.sum.picked.factors, values, strict=True):
            part = self.at_places((_without_ones(value), factor.source.axes), numbers)
            found.append((~part[0], part[1]) if factor.negated else part)
        return found

    def numbers(self, sources: Sequence[jax.Array]) -> Numbers:
        """The number of each row along the axis of each place."""
        picked, found = self.sum.picked, dict[int, Part]()
        left = list(zip(picked.places, sources, strict=False))
        while left:
            place, source = left.pop(0)
            axes = place.number.axes
            if picked.axes & {*axes} <= found.keys():
                number, its = self.at_places((_without_ones(source), axes), found)
                found[place.axis] = self._number(place, number), its
            else:
                left.append((place, source))
        return found

    def at_places(self, part: Part, numbers: Numbers) -> Part:
        """What an array holds at the places; 0 where a place is out of range, if it counts."""
        value, axes = part
        at = {d: numbers[d] for d in axes if d in numbers}
        if not at:
            return part
        rows = sorted({d for _, its in at.values() for d in its})
        along = [d for d in axes if d in at or d in rows]
        windows = [d for d in axes if d not in along]
        if value.size <= prod(self.sum.shape[d] for d in (*rows, *windows)):  # rows of memory
            value = lax.transpose(value, [axes.index(d) for d in (*along, *windows)])
            axes = (*along, *windows)
        indices = self._indices(rows, [at.get(d) or self._all(d) for d in along])
        dims = lax.GatherDimensionNumbers(
            tuple(range(len(rows), len(rows) + len(windows))),
            tuple(sorted(axes.index(d) for d in along)),
            tuple(axes.index(d) for d in along),
        )
        sizes = [1 if d in along else n for d, n in zip(axes, value.shape, strict=True)]
        if self.are_dropped:
            row = lax.gather(value, indices, dims, sizes, mode=lax.GatherScatterMode.CLIP)
        else:
            mode = lax.GatherScatterMode.FILL_OR_DROP
            row = lax.gather(value, indices, dims, sizes, mode=mode, fill_value=0)
        return row, (*rows, *windows)

    def finished(self, parts: Iterable[Part], numbers: Numbers) -> jax.Array:
        """The product of parts, summed up, and added to zeros at places of the result."""
        picked, shape, combine = self.sum.picked, self.sum.shape, self.sum.combine
        free = [d for d in range(len(shape)) if d not in picked.axes]
        layout = [*self.rows, *(d for d in free if d not in self.rows)]
        neutral = jnp.asarray(picked.elsewhere, self.dtype)
        value = self.product(parts, layout)
        for mask in self._in_range(numbers):
            value = jnp.where(self.spread(mask, layout), value, neutral)
        summed = [at for at, d in enumerate(layout) if d in self.sum.summed and d not in self.rows]
        if summed:
            value = REDUCED[combine](value, tuple(summed)).astype(self.dtype)
        return self._written(value, neutral, numbers) if self.written else value

    def product(self, parts: Iterable[Part], layout: list[int]) -> jax.Array:
        """The product of parts, as large as what has these axes."""
        number = self.sum.picked.number
        laid = [self.spread((value.astype(self.dtype), axes), layout) for value, axes in parts]
        if not laid or number != 1:
            laid.insert(0, self.spread((jnp.asarray(number, self.dtype), ()), layout))
        return reduce(lax.bitwise_and if self.dtype == bool else lax.mul, laid)

    def _written(self, rows: jax.Array, neutral: jax.Array, numbers: Numbers) -> jax.Array:
        """Rows that are combined with the neutral element at places of the result."""
        at = {place.axis: numbers[place.axis] for place in self.written}
        at |= {d: self._all(d) for d in self.rows if d in self.kept}
        windows = [d for d in self.kept if d not in at]
        # Places first: then a window is a row of memory.
        made = [*sorted(at), *windows]
        places, first = tuple(made.index(d) for d in at), len(self.rows)
        dims = lax.ScatterDimensionNumbers(
            tuple(range(first, first + len(windows))), tuple(sorted(places)), places
        )
        around = self.spread((neutral, ()), made)
        if self.dtype == bool:
            around, rows = (v.astype(np.int8) for v in (around, rows))
        indices = self._indices(list(self.rows), list(at.values()))
        mode = lax.GatherScatterMode.FILL_OR_DROP
        added = SCATTERS[self.sum.combine](around, indices, rows, dims, mode=mode)
        return lax.transpose(added, [made.index(d) for d in self.kept]).astype(self.dtype)

    def _in_range(self, numbers: Numbers) -> Iterable[Part]:
        """Of places that are summed up, if no factor is zero out of range: whether there is one."""
        picked = self.sum.picked
        zeros = {d for f in picked.factors if not f.negated for d in f.source.axes}
        multiplied = len(picked.factors) == 1 or all(f.leaks for f in picked.factors)
        read = zeros if self.sum.combine == "add" and multiplied else set()
        for axis, (at, axes) in numbers.items():
            if axis in self.sum.summed and axis not in read:
                size = dtypes.wrapped(at.dtype, self.sum.shape[axis])
                yield (at >= 0) & (at < size), axes

    def first(self, axes: Sequence[int], numbers: Numbers) -> Part:
        """Whether a place is the first one of all that are the same along some axes."""
        picked, shape = self.sum.picked, self.sum.shape
        others = sorted(picked.rows(picked.axes) - {*axes})
        layout, count = [*others, *axes], prod(shape[d] for d in axes)
        rows = [shape[d] for d in others]
        same = jnp.tri(count, k=-1, dtype=bool)
        for number in numbers.values():
            at = self.spread(number, layout)
            at = lax.reshape(at, [*rows, count])
            same = same & (at[..., :, None] == at[..., None, :])
        return lax.reshape(~jnp.any(same, -1), [shape[d] for d in layout]), tuple(layout)

    def _number(self, place: Place, number: jax.Array) -> jax.Array:
        if place.most is not None:
            number = jnp.clip(number, 0, dtypes.wrapped(number.dtype, place.most))
        if place.offset:
            number = lax.sub(number, dtypes.wrapped(number.dtype, place.offset))
        if dtypes.bits(number.dtype) < dtypes.bits(np.dtype(np.int32)):
            number = lax.convert_element_type(number, np.int32)
        return number

    def _all(self, axis: int) -> Part:
        return lax.iota(np.dtype(np.int32), self.sum.shape[axis]), (axis,)

    def _indices(self, rows: list[int], numbers: Sequence[Part]) -> jax.Array:
        """Where each row is read or written, along some axes."""
        laid = [self.spread(number, rows) for number in numbers]
        wide = jnp.result_type(*laid)
        return jnp.stack([each.astype(wide) for each in laid], -1)

    def spread(self, part: Part, layout: list[int]) -> jax.Array:
        """A part as large as what has these axes."""
        value, axes = part
        order = sorted(range(len(axes)), key=lambda d: layout.index(axes[d]))
        dims = [layout.index(axes[d]) for d in order]
        shape = [self.sum.shape[d] for d in layout]
        return lax.broadcast_in_dim(lax.transpose(value, order), shape, dims)


def _without_ones(array: jax.Array) -> jax.Array:
    long = [n for n in array.shape if n != 1]
    return array if len(long) == array.ndim else lax.reshape(array, long)


@dataclass(frozen=True)
class OrNan:
    """A sum of places, NaN where plain JAX adds zeros times a number that is not finite.

    Operands: the sources, then, for each factor that leaks, what `looked_at` says of it.
    """

    sum: SumOfPlaces
    dtype: np.dtype[Any]
    """Of the result; sums of fewer bits than 32 are summed up in those."""

    def looked_at(self, factor: Factor, value: jax.Array) -> jax.Array:
        """How many numbers of a factor are not finite, for each that is read; if they are added up,
        whether there is one.
        """
        if self.sum.sum.is_read:
            return NotFinite(factor, self.sum)(value)
        return ~(jnp.max(lax.abs(value)) < np.inf)

    def __call__(self, *operands: jax.Array) -> jax.Array:
        """The sum."""
        picked = self.sum.sum.picked
        sources, seen = operands[: len(picked.sources)], operands[len(picked.sources) :]
        numbers, values = self.sum.numbers(sources), sources[len(picked.places) :]
        parts = self.sum.factors(values, numbers)
        made = self.sum.finished(parts, numbers).astype(self.dtype)
        every = zip(picked.factors, parts, values, strict=True)
        leaking = [each for each in every if each[0].leaks]

        def repaired(made: jax.Array, counts: Iterable[jax.Array]) -> jax.Array:
            for (factor, part, _), count in zip(leaking, counts, strict=True):
                others = self._others(factor, part, count, numbers)
                made = jnp.where(others, jnp.asarray(np.nan, made.dtype), made)
            return made

        def counted(made: jax.Array) -> jax.Array:
            counts = (NotFinite(factor, self.sum)(value) for factor, _, value in leaking)
            return repaired(made, counts)

        if self.sum.sum.is_read or not leaking:
            return repaired(made, seen)
        unsafe = reduce(lax.bitwise_or, seen)
        repairs: jax.Array = lax.cond(unsafe, counted, lambda made: made, made)
        return repairs

    def _others(self, factor: Factor, part: Part, count: jax.Array, numbers: Numbers) -> jax.Array:
        """Whether more numbers of a factor are not finite than those at the places."""
        value, axes = part
        alone = replace(self.sum.sum.picked, factors=(factor,), number=1)
        places = SumOfPlaces(replace(self.sum.sum, picked=alone), np.dtype(np.int32))
        parts = [(~lax.is_finite(value), axes)]
        if factor.outside:
            parts.append(self.sum.first(sorted(factor.outside), numbers))
        own = places.finished(parts, numbers)
        return NotFinite(factor, self.sum).in_result(count) > own


@dataclass(frozen=True)
class NotFinite:
    """How many numbers of a factor are not finite, along the axes that are summed up."""

    factor: Factor
    sum: SumOfPlaces

    @property
    def left(self) -> tuple[int, ...]:
        """The axes of the counts."""
        return tuple(d for d in self.factor.source.axes if d not in self.sum.sum.summed)

    def __call__(self, value: jax.Array) -> jax.Array:
        """Some rows at a time: XLA stores what it reduces."""
        value = _without_ones(value)
        axes = self.factor.source.axes
        along = tuple(at for at, d in enumerate(axes) if d in self.sum.sum.summed)
        once = {*axes, *self.factor.outside}
        times = prod(self.sum.sum.shape[d] for d in self.sum.sum.summed if d not in once)
        count = _counted(value, along)
        if times == 1:
            return count
        most = np.int32(limits.COUNTED)  # more than there are at places
        several = count * np.int32(min(times, limits.COUNTED))
        return jnp.where(count > limits.COUNTED // times, most, several)

    def in_result(self, count: jax.Array) -> jax.Array:
        """The counts, as large as the result."""
        return self.sum.spread((count, self.left), list(self.sum.kept))


def _counted(value: jax.Array, along: tuple[int, ...]) -> jax.Array:
    def counted(some: jax.Array) -> jax.Array:
        return jnp.sum(~lax.is_finite(some), along, dtype=np.int32)

    if not along:
        return counted(value)
    axis, rows = along[0], value.shape[along[0]]
    most = max(limits.NUMBERS_LOOKED_AT * rows // value.size, 1)
    block = max(n for n in range(1, most + 1) if rows % n == 0)

    def add(i: jax.Array, count: jax.Array) -> jax.Array:
        return count + counted(lax.dynamic_slice_in_dim(value, i * block, block, axis))

    if block == rows:
        return counted(value)
    shape = [n for d, n in enumerate(value.shape) if d not in along]
    count: jax.Array = lax.fori_loop(0, rows // block, add, jnp.zeros(shape, np.int32))
    return count
