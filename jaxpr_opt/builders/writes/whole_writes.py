"""A write to a window of an array, as a write to the array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from jaxpr_opt.analysis.windows.window_primitives import further_indexed
from jaxpr_opt.analysis.writes.nested import Nested
from jaxpr_opt.bridge.parameters import has_numbers, numbers_of, unsorted
from jaxpr_opt.bridge.slicing import write_window


def written_to_whole(
    found: Nested, array: jax.Array, value: jax.Array, *indices: jax.Array
) -> jax.Array:
    """The array with what the inner op writes or adds, at the indices of the inner op and of the
    read.
    """
    build = _scattered if has_numbers(found.inner.op) else _written
    return build(found, array, value, *indices)


def _starts(found: Nested, rest: Sequence[jax.Array]) -> list[Any]:
    """Where the window that is put back starts."""
    n = len(found.inner.indices)
    dtype = found.inner.indices[0].dtype
    starts = found.read.starts(*rest[n:])
    return [s if isinstance(s, int) else lax.convert_element_type(s, dtype) for s in starts]


def _written(found: Nested, array: jax.Array, value: jax.Array, *rest: jax.Array) -> jax.Array:
    """The array with a slice written."""
    inner, starts, sizes = found.inner, _starts(found, rest), [1] * array.ndim
    here = inner.starts(*rest[: len(inner.indices)])
    for axis, there in found.place.items():
        sizes[there] = inner.sizes[axis]
        if there not in found.narrowed:
            starts[there] = here[axis]
    return write_window(array, lax.reshape(inner.to_window(value), sizes), starts)


def _scattered(
    found: Nested, array: jax.Array, value: jax.Array, index: jax.Array, *rest: jax.Array
) -> jax.Array:
    """The array with a window written or added to, as a scatter says."""
    inner, place, starts = found.inner, found.place, _starts(found, (index, *rest))
    axes, numbers = sorted(found.narrowed), numbers_of(inner.op)
    there = {axis for axis in range(array.ndim) if axis not in place.values()}

    def moved(dims: Sequence[int]) -> tuple[int, ...]:
        return tuple(place[d] for d in dims)

    of_array = lax.ScatterDimensionNumbers(
        update_window_dims=numbers.update_window_dims,
        inserted_window_dims=tuple(sorted({*there, *moved(numbers.inserted_window_dims)})),
        scatter_dims_to_operand_dims=(*moved(numbers.scatter_dims_to_operand_dims), *axes),
        operand_batching_dims=moved(numbers.operand_batching_dims),
        scatter_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    params = {**unsorted(inner.op), "dimension_numbers": of_array}
    assert inner.op.primitive is not None
    index = further_indexed(index, [starts[axis] for axis in axes])
    made: jax.Array = inner.op.primitive.bind(array, index, value, **params)
    return made
