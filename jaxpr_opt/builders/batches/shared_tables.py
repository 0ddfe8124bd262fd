"""One table for all rows of a batch, instead of one for each row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.windows.window_primitives import mirrored
from jaxpr_opt.bridge.parameters import fill_value_of, mode_of, numbers_of, slice_sizes_of
from jaxpr_opt.ir.graph import Op


def read_of_one(op: Op, axes: Sequence[int]) -> Any:
    """The same read of a table without some batch axes."""
    numbers = _unbatched(numbers_of(op), axes)
    sizes = without(slice_sizes_of(op), axes)
    mode, filler = mode_of(op), fill_value_of(op)

    def read(table: jax.Array, index: jax.Array) -> jax.Array:
        return lax.gather(table, index, numbers, sizes, mode=mode, fill_value=filler)

    return read


def add_to_one(
    scatter: Op,
    axes: Sequence[int],
    index: jax.Array,
    update: jax.Array,
    base: jax.Array | None = None,
) -> jax.Array:
    """What all rows along some batch axes add to zeros, added to one array; to zeros, if none is
    given.
    """
    where = _unbatched(mirrored(scatter), axes)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=where.offset_dims,
        inserted_window_dims=where.collapsed_slice_dims,
        scatter_dims_to_operand_dims=where.start_index_map,
        operand_batching_dims=where.operand_batching_dims,
        scatter_indices_batching_dims=where.start_indices_batching_dims,
    )
    if base is None:
        base = jnp.zeros(without(scatter.result.shape, axes), update.dtype)
    return lax.scatter_add(base, index, update, numbers, mode=mode_of(scatter))


def update_axes(scatter: Op, axes: Sequence[int]) -> list[int]:
    """The axes of the update of a scatter that these batch axes of the array are."""
    numbers, update = numbers_of(scatter), scatter.operands[2]
    places = dict(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    of_rows = [d for d in range(len(update.shape)) if d not in numbers.update_window_dims]
    return [of_rows[places[axis]] for axis in axes]


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
