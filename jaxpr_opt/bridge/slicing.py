"""Read, write and stack windows and rows of arrays, at starts that are in range.

No start is negative, so no ops normalise starts: a scan reads its rows in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.bridge import compat_types, dtypes


def read_window(array: jax.Array, starts: Sequence[Any], sizes: Sequence[int]) -> jax.Array:
    """A window at starts that are in range, some of them numbers."""
    if all(isinstance(start, int) for start in starts):
        return lax.slice(array, starts, [a + n for a, n in zip(starts, sizes, strict=True)])
    return lax.dynamic_slice(array, _alike(starts), sizes, allow_negative_indices=False)


def write_window(array: jax.Array, window: jax.Array, starts: Sequence[Any]) -> jax.Array:
    """The array with a window written at starts that are in range, some of them numbers."""
    window = compat_types.beside(array, window)
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


def read_run(array: jax.Array, first: Any, count: int, axis: int) -> jax.Array:
    """So many rows along an axis, from the first on."""
    sizes = [count if d == axis else n for d, n in enumerate(array.shape)]
    return read_window(array, _along(axis, first, array.ndim), sizes)


def write_run(array: jax.Array, rows: jax.Array, first: Any, axis: int) -> jax.Array:
    """The array with other rows along an axis, from the first on."""
    return write_window(array, rows, _along(axis, first, array.ndim))


def _along(axis: int, first: Any, rank: int) -> list[Any]:
    return [first if d == axis else 0 for d in range(rank)]


def read_row(array: jax.Array, row: jax.Array, axis: int = 0) -> jax.Array:
    """The row of that number along an axis."""
    return lax.squeeze(read_run(array, row, 1, axis), (axis,))


def write_row(array: jax.Array, value: jax.Array, row: jax.Array, axis: int = 0) -> jax.Array:
    """The array with another row of that number."""
    return write_run(array, lax.expand_dims(value, (axis,)), row, axis)


def in_range(places: jax.Array, last: int) -> jax.Array:
    """The nearest places from 0 to the last, which their dtype need not hold, as `int32`."""
    if not dtypes.holds(places.dtype, last):
        places = lax.convert_element_type(places, np.int32)
    low, high = (np.asarray(n, places.dtype) for n in (0, last))
    return lax.convert_element_type(lax.clamp(low, places, high), np.int32)


def places_in_range(
    index: jax.Array,
    axes: Sequence[int],
    batches: Iterable[tuple[int, int]],
    shape: Sequence[int],
) -> tuple[dict[int, jax.Array], jax.Array]:
    """The nearest places in an array of this shape to those that the index of a gather or a scatter
    says, along each axis that it counts, and along those of a batch, with which of them were there.

    Args:
      index: of any shape; its last axis has a number for each of the axes.
      axes: the axes of the array that these numbers are along.
      batches: axes of the array, each with that axis of the index whose rows have a place each.
      shape: of the array.

    Returns:
      Places along each axis, and whether all were in range, of the shape of the index without its
      last axis.
    """
    lead = index.shape[:-1]
    given = {axis: index[..., column] for column, axis in enumerate(axes)}
    given |= {axis: lax.broadcasted_iota(np.int32, lead, of_index) for axis, of_index in batches}
    places = {axis: in_range(at, shape[axis] - 1) for axis, at in given.items()}
    alike = (lax.convert_element_type(places[axis], at.dtype) for axis, at in given.items())
    inside = map(lax.eq, given.values(), alike)
    return places, reduce(lax.bitwise_and, inside)


def shifted(window: jax.Array, by: jax.Array, size: int, axis: int, number: Any) -> jax.Array:
    """So many elements along an axis, of which element `k` is element ``k + by`` of a window, or a
    number where it has none.
    """
    if window.shape[axis] == size == 1:
        return jnp.where(by == 0, window, number)
    around = [(size, size, 0) if d == axis else (0, 0, 0) for d in range(window.ndim)]
    first = in_range(by + np.int32(size), window.shape[axis] + size)
    return read_run(lax.pad(window, number, around), first, size, axis)


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
