"""Read, write and stack windows and rows of arrays, at starts that are in range.

No start is negative, so no ops normalise starts: a scan reads its rows in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from jaxpr_opt.bridge import dtypes


def read_window(array: jax.Array, starts: Sequence[Any], sizes: Sequence[int]) -> jax.Array:
    """A window at starts that are in range, some of them numbers."""
    if all(isinstance(start, int) for start in starts):
        return lax.slice(array, starts, [a + n for a, n in zip(starts, sizes, strict=True)])
    return lax.dynamic_slice(array, _alike(starts), sizes, allow_negative_indices=False)


def write_window(array: jax.Array, window: jax.Array, starts: Sequence[Any]) -> jax.Array:
    """The array with a window written at starts that are in range, some of them numbers."""
    return lax.dynamic_update_slice(array, window, _alike(starts), allow_negative_indices=False)


def _alike(starts: Sequence[Any]) -> list[Any]:
    """Starts of one type, as JAX wants them: a number would be an int64 in x64 mode."""
    computed = next((start.dtype for start in starts if not isinstance(start, int)), None)
    if computed is None:
        return list(starts)
    return [dtypes.wrapped(computed, s) if isinstance(s, int) else s for s in starts]


def stacked(rows: Sequence[Any], axis: int) -> Any:
    """A `stack` that JAX can batch over an explicit axis of a mesh if not all rows are batched."""
    return lax.concatenate([lax.expand_dims(row, (axis,)) for row in rows], axis)


def read_row(array: jax.Array, row: jax.Array, axis: int = 0) -> jax.Array:
    """The row of that number along an axis."""
    start: list[Any] = [0] * array.ndim
    start[axis] = row
    sizes = [1 if d == axis else n for d, n in enumerate(array.shape)]
    return lax.squeeze(read_window(array, start, sizes), (axis,))


def write_row(array: jax.Array, value: jax.Array, row: jax.Array, axis: int = 0) -> jax.Array:
    """The array with another row of that number."""
    start: list[Any] = [0] * array.ndim
    start[axis] = row
    return write_window(array, lax.expand_dims(value, (axis,)), start)


def rows_at(array: jax.Array, places: jax.Array, axis: int) -> jax.Array:
    """The rows along an axis at places that are in range."""
    others = tuple(d for d in range(array.ndim) if d != axis)
    return lax.gather(
        array,
        lax.expand_dims(places, (1,)),
        lax.GatherDimensionNumbers(others, (axis,), (axis,)),
        [1 if d == axis else n for d, n in enumerate(array.shape)],
        mode=lax.GatherScatterMode.CLIP,
    )


def add_at(array: jax.Array, rows: jax.Array, places: jax.Array, axis: int) -> jax.Array:
    """The array with rows along an axis added at places that are in range."""
    others = tuple(d for d in range(array.ndim) if d != axis)
    return lax.scatter_add(
        array,
        lax.expand_dims(places, (1,)),
        rows,
        lax.ScatterDimensionNumbers(others, (axis,), (axis,)),
        mode=lax.GatherScatterMode.CLIP,
    )
