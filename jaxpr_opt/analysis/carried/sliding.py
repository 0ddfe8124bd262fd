"""A window that slides over an array as a loop runs: which rows enter, stay and leave.

::

    step 0   [r0 r1 r2] r3  r4          r2 enters; r0 leaves
    step 1    r0 [r1 r2 r3] r4          r3 enters; r1 leaves
    step 2    r0  r1 [r2 r3 r4]         r4 enters; r2, r3 and r4 are held in the end

`sliding(scan, accesses, axis)` is the least window that all of them are in.  What a loop does to
the rows of its window it does to values of the step: those that enter are streamed in, those that
stay are carried, those that leave are stacked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.values.constants import strong
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.bridge.slicing import read_window, write_window
from jaxpr_opt.ir.graph import Scan


@dataclass(frozen=True, slots=True)
class Window:
    """Rows ``stride * step + low``, `size` of them, along `axis` of an array of which the scan
    takes `length` steps.  With a stride of 0 it stands still, and all its rows are kept.

    Rows that are always read and written together, `unit` of them, are one value of the step: a
    block, with the rows as its first axis.
    """

    axis: int
    stride: int
    low: int
    size: int
    length: int
    reverse: bool
    unit: int = 1

    @property
    def entering(self) -> int:
        """Blocks that are new in each step; as many leave after it."""
        return min(abs(self.stride), self.size) // self.unit

    @property
    def kept(self) -> int:
        """Blocks that stay in the window."""
        return self.size // self.unit - self.entering

    @property
    def climbs(self) -> bool:
        """Whether the window moves to higher rows as the loop runs."""
        return (self.stride > 0) != self.reverse

    def start(self, turn: int) -> int:
        """The first row of the window in the first step that runs (0) or the last (-1)."""
        step = 0 if (turn == 0) != self.reverse else self.length - 1
        return self.stride * step + self.low

    @property
    def first(self) -> int:
        """The lowest row that any step touches."""
        return min(self.start(0), self.start(-1))

    @property
    def held(self) -> range:
        """The rows that the window holds in the end."""
        start = self.start(-1) + (self.entering * self.unit if self.climbs else 0)
        return range(start, start + self.kept * self.unit)

    def is_put_together(self, shape: tuple[int, ...]) -> bool:
        """Whether what is stacked is not yet the array, with its rows in order."""
        is_whole = self.stride == self.unit and self.length * self.unit == shape[self.axis]
        return self.axis != 0 or self.kept > 0 or not is_whole

    @property
    def incoming(self) -> range:
        """All rows that enter the window."""
        kept = self.kept * self.unit
        start = self.first + (kept if self.climbs else 0)
        return range(start, start + self.touched - kept)

    @property
    def touched(self) -> int:
        """From the lowest to the highest row that any step touches."""
        return abs(self.stride) * (self.length - 1) + self.size

    def block(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a block of an array of a shape."""
        row = self._across(shape)
        return tuple(row) if self.unit == 1 else (self.unit, *row)

    def entering_rows(self, array: jax.Array) -> jax.Array:
        """For each step the blocks that enter, `(length, entering, ...)`, or `(length, ...)` if
        that is one.
        """
        if abs(self.stride) == 1:
            end = self.incoming.stop
            rows = lax.slice_in_dim(array, self.incoming.start, end, axis=self.axis)
            rows = jnp.moveaxis(rows, self.axis, 0)
            return rows if self.stride > 0 else lax.rev(rows, (0,))
        blocks = self._blocks(array, self.incoming.start)
        blocks = lax.slice_in_dim(blocks, 0, self.entering * self.unit, axis=1)
        blocks = blocks if self.stride > 0 else lax.rev(blocks, (0,))
        entering = () if self.entering == 1 else (self.entering,)
        return lax.reshape(blocks, (self.length, *entering, *self.block(array.shape)))

    def kept_rows(self, array: jax.Array) -> list[jax.Array]:
        """The rows that the window holds before the first step."""
        start = self.start(0) + (0 if self.climbs else self.entering * self.unit)
        return [self._cut(array, start + self.unit * block) for block in range(self.kept)]

    def _cut(self, array: jax.Array, row: int) -> jax.Array:
        """The block that starts at a row."""
        if self.unit == 1:
            return lax.index_in_dim(array, row, self.axis, keepdims=False)
        rows = lax.slice_in_dim(array, row, row + self.unit, axis=self.axis)
        return jnp.moveaxis(rows, self.axis, 0)

    def _blocks(self, array: jax.Array, first: int) -> jax.Array:
        """The rows from `first` on, a block of as many as the window moves by for each step."""
        period = abs(self.stride)
        end = first + period * self.length
        part = lax.slice_in_dim(array, first, min(end, array.shape[self.axis]), axis=self.axis)
        rows = jnp.moveaxis(part, self.axis, 0)
        missing = period * self.length - rows.shape[0]  # at most what no window touches
        if missing:
            rows = lax.concatenate([rows, jnp.zeros((missing, *rows.shape[1:]), rows.dtype)], 0)
        return lax.reshape(rows, (self.length, period, *rows.shape[1:]))

    def result(self, array: jax.Array, *blocks: jax.Array) -> jax.Array:
        """The array after the loop: from the blocks that left after each step, if any do, and those
        in the window at the end.
        """
        if not self.entering:
            return jnp.stack(blocks, self.axis)
        left, *kept = blocks
        left = left if self.stride > 0 else lax.rev(left, (0,))
        row = self._across(array.shape)
        period, entering = abs(self.stride), self.entering * self.unit
        if period > entering:  # rows between the windows
            between = self._blocks(array, self.first)[:, entering:]
            apart = lax.reshape(left, (self.length, entering, *row))
            left = lax.concatenate([apart, between], 1)
        new = lax.reshape(left, (self.length * period, *row))
        if self.kept:
            rest = lax.reshape(jnp.stack(kept), (self.kept * self.unit, *row))
            new = lax.concatenate([new, rest] if self.climbs else [rest, new], 0)
        new = jnp.moveaxis(lax.slice_in_dim(new, 0, self.touched), 0, self.axis)
        if new.shape == array.shape:
            return new
        return lax.dynamic_update_slice_in_dim(array, new, self.first, self.axis)

    # What an access does to the window's blocks.

    def pieces(self, access: Access) -> range:
        """Which of the window's blocks an access touches."""
        extent = access.window[self.axis]
        assert extent.start is not None
        low = (extent.start.offset - self.low) // self.unit
        return range(low, low + extent.size // self.unit)

    def read(self, access: Access, *operands: jax.Array) -> jax.Array:
        """The value of an access, from the blocks that `pieces` names and the indices of the
        access.
        """
        count = len(operands) - len(access.indices)
        blocks, indices = operands[:count], operands[count:]
        parts = [self._laid(self._part(access, block, indices)) for block in blocks]
        return access.from_window(lax.concatenate(parts, self.axis))

    def _laid(self, part: jax.Array) -> jax.Array:
        """A part of a block with the axes of the array."""
        if self.unit == 1:
            return lax.expand_dims(part, (self.axis,))
        return jnp.moveaxis(part, 0, self.axis)

    def written(
        self, access: Access, number: int, block: jax.Array, value: jax.Array, *indices: jax.Array
    ) -> jax.Array:
        """A block, the `number`-th that the access touches, after a write or an addition."""
        part = self._cut(access.to_window(value), number * self.unit)
        if access.kind == "add":
            part = lax.add(self._part(access, block, indices), part)
        if part.shape != block.shape:
            part = write_window(block, part, self._within(access.starts(*indices), 0))
        return strong(part)

    def _part(self, access: Access, block: jax.Array, indices: Sequence[jax.Array]) -> jax.Array:
        """The window within a block."""
        starts = self._within(access.starts(*indices), 0)
        return read_window(block, starts, self._within(access.sizes, self.unit))

    def _within(self, axes: Sequence[Any], rows: int) -> list[Any]:
        """For the axes of a block: its rows, and the others."""
        across = self._across(axes)
        return across if self.unit == 1 else [rows, *across]

    def _across(self, axes: Sequence[Any]) -> list[Any]:
        """Without the axis along which the window moves."""
        return [each for axis, each in enumerate(axes) if axis != self.axis]


def sliding(scan: Scan, accesses: Iterable[Access], axis: int) -> Window | None:
    """The least window along an axis that all accesses are in, if they move alike: by the same
    number of rows, not 0, in each step of the scan.
    """
    extents = [access.window[axis] for access in accesses]
    starts = [(e.start, e.size) for e in extents if e.start is not None]
    stride = starts[0][0].steps.get(scan, 0)
    if not stride or any(s.steps != {scan: stride} for s, _ in starts):
        return None
    low = min(start.offset for start, _ in starts)
    high = max(start.offset + size for start, size in starts)
    unit = gcd(stride, *(n for start, size in starts for n in (start.offset - low, size)))
    return Window(axis, stride, low, high - low, scan.length, scan.reverse, unit)
