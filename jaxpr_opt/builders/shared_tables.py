"""One table for all rows of a batch, instead of one for each row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.windows.places_apart import may_coincide
from jaxpr_opt.analysis.windows.window_primitives import indexed_axes, mirrored, window_sizes
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import fill_value_of, mode_of, numbers_of, slice_sizes_of
from jaxpr_opt.bridge.slicing import stacked
from jaxpr_opt.ir.graph import Op


def read_of_one(op: Op, axes: Sequence[int]) -> Any:
    """The same read of a table without some batch axes."""
    numbers = _unbatched(numbers_of(op), axes)
    sizes = without(slice_sizes_of(op), axes)
    mode, filler = mode_of(op), fill_value_of(op)

    def read(table: jax.Array, index: jax.Array) -> jax.Array:
        return lax.gather(table, index, numbers, sizes, mode=mode, fill_value=filler)

    return read


def sum_in_one(scatters: Sequence[Op], axes: Sequence[int]) -> Any:
    """The same additions, to zeros without some batch axes; what several add in a row of the batch
    is added there one after the other.
    """
    op = scatters[0]
    array, index, update = op.operands
    shape, mode = without(array.shape, axes), mode_of(op)
    where, lead = _unbatched(mirrored(op), axes), len(index.shape) - 1
    of_rows = [d for d in range(len(update.shape)) if d not in where.offset_dims]
    at = max(of_rows, default=-1) + 1
    windows = where.offset_dims
    if len(scatters) > 1:
        windows = tuple(d + (d >= at) for d in windows)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=windows,
        inserted_window_dims=where.collapsed_slice_dims,
        scatter_dims_to_operand_dims=where.start_index_map,
        operand_batching_dims=where.operand_batching_dims,
        scatter_indices_batching_dims=where.start_indices_batching_dims,
    )

    def add(*given: jax.Array) -> jax.Array:
        index, update = given[:2]
        if len(scatters) > 1:
            updates = _at_one_place(scatters, given[::2], given[1::2])
            index, update = stacked(given[::2], lead), stacked(updates, at)
        return lax.scatter_add(lax.full(shape, 0, array.dtype), index, update, numbers, mode=mode)

    return add


def _at_one_place(
    scatters: Sequence[Op], indices: Sequence[jax.Array], updates: Sequence[jax.Array]
) -> list[jax.Array]:
    """The updates, each with what later ones of its row add to the same place; those add zero."""
    made, op = list(updates), scatters[0]
    windows = set(numbers_of(op).update_window_dims)
    of_rows = [d for d in range(updates[0].ndim) if d not in windows]
    moved: dict[int, Any] = {}
    for first, later in may_coincide(scatters) if not dtypes.is_integer(op.result.dtype) else ():
        places = [_clamped(op, indices[number]) for number in (first, later)]
        same = lax.reduce_and(lax.eq(*places), (indices[0].ndim - 1,))
        gone = moved.get(later, lax.full_like(same, False))
        here = lax.broadcast_in_dim(same & ~gone, updates[0].shape, of_rows)
        made[first] = lax.select(here, lax.add(made[first], updates[later]), made[first])
        moved[later] = gone | same
    for number, gone in moved.items():
        spread = lax.broadcast_in_dim(gone, updates[0].shape, of_rows)
        made[number] = lax.select(spread, lax.full_like(made[number], 0), made[number])
    return made


def _clamped(op: Op, index: jax.Array) -> jax.Array:
    """Where windows are, if they are not dropped."""
    if mode_of(op) == lax.GatherScatterMode.FILL_OR_DROP:
        return index
    sizes, shape = window_sizes(op), op.operands[0].shape
    last = [shape[axis] - sizes[axis] for axis in indexed_axes(op)]
    return jnp.clip(index, 0, np.asarray(last, index.dtype))


def renumbered(gone: Sequence[int], kept: Sequence[int]) -> tuple[int, ...]:
    """Axes of an array that is to lose some others, as they are numbered then."""
    return tuple(axis - sum(each < axis for each in gone) for axis in kept)


def without(sizes: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Sizes, but for those of some axes."""
    return tuple(n for axis, n in enumerate(sizes) if axis not in axes)


def _unbatched(
    numbers: lax.GatherDimensionNumbers, axes: Sequence[int]
) -> lax.GatherDimensionNumbers:
    """Where windows are in an array without some of its batch axes."""
    moved = partial(renumbered, axes)
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    left = [(axis, place) for axis, place in pairs if axis not in axes]
    return lax.GatherDimensionNumbers(
        offset_dims=numbers.offset_dims,
        collapsed_slice_dims=moved(numbers.collapsed_slice_dims),
        start_index_map=moved(numbers.start_index_map),
        operand_batching_dims=moved([axis for axis, _ in left]),
        start_indices_batching_dims=tuple(place for _, place in left),
    )
