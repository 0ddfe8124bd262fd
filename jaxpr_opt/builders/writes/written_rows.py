"""Read rows of an array after rows were written or added to it, without the array.

The rows are read as they were, and written to, or added to, in the order of the scatter. Of places
that are read several times, one stands for all. Which write goes to which, all pairs tell if they
are few; else what is read leaves its number in an array of all places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.windows.window_primitives import mirrored, scattering, window_sizes
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import fills, mode_of, numbers_of, slice_sizes_of
from jaxpr_opt.builders.sparse.repeated_rows import mark_of
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Op, Value, is_sized

_IN_RANGE: Any = {"mode": "promise_in_bounds", "wrap_negative_indices": False}
_DROPPED, _FILLED = np.int32(-1), np.int32(-2)
"""The numbers of places out of range, which are no others."""


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Rows that `read`, a gather, reads of what `write`, a scatter, made."""

    read: Op
    write: Op

    @property
    def seconds(self) -> float:
        """To find which rows that are read are written."""
        return min(self._compared, self._marked)

    @property
    def is_of_rows(self) -> bool:
        """Whether both are of windows of one size, of which any two are equal or disjoint."""
        sizes, array = window_sizes(self.write), self.write.result
        places = (op.operands[1] for op in (self.read, self.write))
        # Condition 1 of forward-repeated-rows.
        return (
            bool(self._sizes)
            and slice_sizes_of(self.read) == sizes
            and all(sizes[axis] in {1, array.shape[axis]} for axis in self._sizes)
            and math.prod(self._sizes.values()) <= np.iinfo(np.int32).max
            and all(max(array.shape) <= dtypes.limits(each.dtype)[1] for each in places)
        )

    @property
    def operands(self) -> tuple[Value, ...]:
        """What `rows` reads."""
        array, *written = self.write.operands
        return (self.read.operands[1], *written, *([] if self._is_known else [array]))

    def rows(
        self, at: jax.Array, index: jax.Array, update: jax.Array, *array: jax.Array
    ) -> jax.Array:
        """What is read, from the places and what is written there, and from the array before."""
        old = self._as_they_were(at, *array)
        read, written = self._numbers(self.read, at), self._numbers(self.write, index)
        is_marked = self._marked < self._compared
        find = _by_marks if is_marked else _by_pairs
        own, slots = find(read, written, math.prod(self._sizes.values()))
        left = _scattered(
            self.write, self._flat(self.read, old), slots, self._flat(self.write, update)
        )
        shared = left.at[own].get(**_IN_RANGE)
        order = _order(self.read, old)
        found = lax.reshape(shared, [old.shape[axis] for axis in order])
        return lax.transpose(found, [order.index(axis) for axis in range(old.ndim)])

    @property
    def _is_known(self) -> bool:
        """Whether the array was one number everywhere, and nothing else is read of it."""
        return uniform(self.write.operands[0]) is not None and not fills(self.read)

    def _as_they_were(self, at: jax.Array, *array: jax.Array) -> jax.Array:
        read = self.read
        if not array:
            number = uniform(self.write.operands[0])
            return jnp.full(read.result.shape, number, read.result.dtype)
        assert read.primitive is not None
        rows: jax.Array = read.primitive.bind(*array, at, **read.params)
        return rows

    def _flat(self, op: Op, rows: jax.Array) -> jax.Array:
        """Windows, one after the other, with all axes of the array."""
        moved = lax.transpose(rows, _order(op, rows))
        return lax.reshape(moved, (_count(op), *window_sizes(self.write)))

    def _numbers(self, op: Op, index: jax.Array) -> jax.Array:
        """The number of each place, one after the other."""
        numbers, tests, stride = [], [], 1
        drops, at = self._drops(op), {axis: n for n, axis in enumerate(_placed(op).start_index_map)}
        batch = dict(zip(_placed(op).operand_batching_dims, _batched(op), strict=True))
        for axis, size in reversed(self._sizes.items()):
            if axis in batch:
                place = lax.broadcasted_iota(np.int32, index.shape[:-1], batch[axis])
                numbers.append(place * np.int32(stride))
            elif axis in at:
                place, last = index[..., at[axis]], np.asarray(size - 1, index.dtype)
                tests.append((place >= 0) & (place <= last))
                place = place if drops else jnp.clip(place, np.zeros_like(last), last)
                numbers.append(lax.convert_element_type(place, np.int32) * np.int32(stride))
            stride *= size
        number = reduce(lax.add, numbers)
        # Condition 2 of forward-repeated-rows.
        if drops and tests:
            none = _FILLED if op is self.read else _DROPPED
            number = jnp.where(reduce(lax.bitwise_and, tests), number, none)
        return lax.reshape(number, (_count(op),))

    def _drops(self, op: Op) -> bool:
        """Whether a place out of range is none: XLA clamps the others."""
        # Condition 2 of forward-repeated-rows.
        return fills(op) if op is self.read else mode_of(op) != lax.GatherScatterMode.CLIP

    @property
    def _compared(self) -> float:
        """Seconds to compare all pairs of places."""
        read, written = _count(self.read), _count(self.write)
        return cost_model().paired(read) + cost_model().paired(read, written)

    @property
    def _marked(self) -> float:
        """Seconds to mark the places that are read in an array that is no larger than theirs."""
        read, written = _count(self.read), _count(self.write)
        size = mark_of(read).itemsize * math.prod(self._sizes.values())
        is_small = size <= self.write.result.nbytes
        return cost_model().marked(read + written, size) if is_small else math.inf

    @property
    def _sizes(self) -> dict[int, int]:
        """The axes that say where a window is, and how many places there are along each."""
        sizes, shape = window_sizes(self.write), self.write.result.shape
        pairs = (_placed(self.read), _placed(self.write))
        axes = {axis for each in pairs for axis in _axes(each)}
        return {axis: shape[axis] - sizes[axis] + 1 for axis in sorted(axes)}


def reads_of_rows(write: Op) -> Iterator[WrittenRows]:
    """The gathers of rows that a scatter writes, of all that reads what it makes."""
    for read in write.result.users:
        values = *write.operands, *read.operands
        if read.name == "gather" and read.operands[0] is write.result:
            found = WrittenRows(read, write)
            if all(is_sized(v.shape) for v in values) and found.is_of_rows:
                yield found


def _placed(op: Op) -> lax.GatherDimensionNumbers:
    numbers: lax.GatherDimensionNumbers = numbers_of(op) if op.name == "gather" else mirrored(op)
    return numbers


def _axes(numbers: lax.GatherDimensionNumbers) -> tuple[int, ...]:
    return (*numbers.operand_batching_dims, *numbers.start_index_map)


def _batched(op: Op) -> tuple[int, ...]:
    """The axes of the places that are along a batch."""
    return tuple(_placed(op).start_indices_batching_dims)


def _count(op: Op) -> int:
    return math.prod(op.operands[1].shape[:-1])


def _order(op: Op, rows: jax.Array) -> list[int]:
    """The axes that number windows, then those of windows."""
    windows = _placed(op).offset_dims
    return [*(axis for axis in range(rows.ndim) if axis not in windows), *windows]


def _scattered(write: Op, rows: jax.Array, slots: jax.Array, update: jax.Array) -> jax.Array:
    """Rows that were written to, or added to, those that have a slot."""
    numbers = lax.ScatterDimensionNumbers((*range(1, rows.ndim),), (0,), (0,))
    return scattering(write)(rows, slots[:, None], update, numbers, mode="drop")


def _by_pairs(read: jax.Array, written: jax.Array, _: int) -> tuple[jax.Array, jax.Array]:
    """For each row that is read, one at the same place, always that one; for each that is written,
    that one, or a slot that is none.
    """
    return _first_alike(read, read), _first_alike(written, read)


def _first_alike(places: jax.Array, among: jax.Array) -> jax.Array:
    alike = lax.eq(places[:, None], among[None])
    numbers = lax.broadcasted_iota(np.int32, alike.shape, 1)
    return lax.reduce_min(jnp.where(alike, numbers, np.int32(len(among))), (1,))


def _by_marks(read: jax.Array, written: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """The same, by numbers that are left in an array of all places."""
    own = lax.iota(mark_of(len(read)), len(read))
    marks = (
        jnp.full(size, -1, own.dtype).at[read].set(own, mode="drop", wrap_negative_indices=False)
    )
    here, there = (
        marks.at[each].get(mode="fill", fill_value=-1, wrap_negative_indices=False)
        for each in (read, written)
    )
    return jnp.where(here < 0, own, here), there
