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
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.access import Access, read_window, write_window
from jaxpr_opt.analysis.constants import strong
from jaxpr_opt.ir import Scan


@dataclass(frozen=True, slots=True)
class Window:
    """Rows ``stride * step + low``, `size` of them, along `axis` of an array of which the scan
    takes `length` steps.  With a stride of 0 it stands still, and all its rows are kept.
    """

    axis: int
    stride: int
    low: int
    size: int
    length: int
    reverse: bool

    @property
    def entering(self) -> int:
        """Rows that are new in each step; as many leave after it."""
        return min(abs(self.stride), self.size)

    @property
    def kept(self) -> int:
        """Rows that stay in the window."""
        return self.size - self.entering

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
        start = self.start(-1) + (self.entering if self.climbs else 0)
        return range(start, start + self.kept)

    def is_put_together(self, shape: tuple[int, ...]) -> bool:
        """Whether what is stacked is not yet the array, with its rows in order."""
        return self.axis != 0 or self.stride != 1 or self.kept > 0 or self.length != shape[0]

    @property
    def incoming(self) -> range:
        """All rows that enter the window."""
        start = self.first + (self.kept if self.climbs else 0)
        return range(start, start + self.touched - self.kept)

    @property
    def touched(self) -> int:
        """From the lowest to the highest row that any step touches."""
        return abs(self.stride) * (self.length - 1) + self.size

    def entering_rows(self, array: jax.Array) -> jax.Array:
        """For each step the rows that enter, `(length, entering, ...)`, or `(length, ...)` if that
        is one.
        """
        blocks = self._blocks(array, self.incoming.start)
        blocks = lax.slice_in_dim(blocks, 0, self.entering, axis=1)
        blocks = blocks if self.stride > 0 else lax.rev(blocks, (0,))
        row = blocks.shape[2:]
        return lax.reshape(blocks, (self.length, *row)) if self.entering == 1 else blocks

    def kept_rows(self, array: jax.Array) -> list[jax.Array]:
        """What the window holds already before the first step."""
        start = self.start(0) + (0 if self.climbs else self.entering)
        rows = range(start, start + self.kept)
        return [lax.index_in_dim(array, row, self.axis, keepdims=False) for row in rows]

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

    def result(self, array: jax.Array, *rows: jax.Array) -> jax.Array:
        """The array after the loop: from the rows that left after each step, if any do, and those
        in the window at the end.
        """
        if not self.entering:
            return jnp.stack(rows, self.axis)
        left, *kept = rows
        left = left if self.stride > 0 else lax.rev(left, (0,))
        row = left.shape[1 if self.entering == 1 else 2 :]
        period = abs(self.stride)
        if period > self.entering:  # rows between the windows
            between = self._blocks(array, self.first)[:, self.entering :]
            blocks = lax.reshape(left, (self.length, self.entering, *row))
            left = lax.concatenate([blocks, between], 1)
        new = lax.reshape(left, (self.length * period, *row))
        if self.kept:
            rest = jnp.stack(kept)
            new = lax.concatenate([new, rest] if self.climbs else [rest, new], 0)
        new = jnp.moveaxis(lax.slice_in_dim(new, 0, self.touched), 0, self.axis)
        if new.shape == array.shape:
            return new
        return lax.dynamic_update_slice_in_dim(array, new, self.first, self.axis)

    # What an access does to the window's rows.

    def pieces(self, access: Access) -> range:
        """Which of the window's rows an access touches."""
        extent = access.window[self.axis]
        assert extent.start is not None
        low = extent.start.offset - self.low
        return range(low, low + extent.size)

    def read(self, access: Access, *operands: jax.Array) -> jax.Array:
        """What is read of the rows that `pieces` names, given with the indices of the access."""
        count = len(operands) - len(access.indices)
        rows, indices = operands[:count], operands[count:]
        parts = [lax.expand_dims(self._part(access, row, indices), (self.axis,)) for row in rows]
        return access.from_window(lax.concatenate(parts, self.axis))

    def written(
        self, access: Access, number: int, row: jax.Array, value: jax.Array, *indices: jax.Array
    ) -> jax.Array:
        """A row, the `number`-th that the access touches, after a write or an addition."""
        part = lax.index_in_dim(access.to_window(value), number, self.axis, keepdims=False)
        if access.kind == "add":
            part = lax.add(self._part(access, row, indices), part)
        if part.shape != row.shape:
            start = self._across(access.starts(*indices))
            part = write_window(row, part, start)
        return strong(part)

    def _part(self, access: Access, row: jax.Array, indices: Sequence[jax.Array]) -> jax.Array:
        """The window within a row."""
        starts, sizes = self._across(access.starts(*indices)), self._across(access.sizes)
        return read_window(row, starts, sizes)

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
    return Window(axis, stride, low, high - low, scan.length, scan.reverse)
