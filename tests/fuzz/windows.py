"""Gathers, scatters and slices in NumPy, with XLA's rules for indices out of range."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxpr_opt.ir.graph import Op

Array = Any


def _clamped(starts: Any, sizes: Any, shape: Any) -> tuple[int, ...]:
    return tuple(min(max(int(s), 0), n - k) for s, k, n in zip(starts, sizes, shape, strict=True))


def _box(starts: Any, sizes: Any) -> tuple[slice, ...]:
    return tuple(slice(s, s + k) for s, k in zip(starts, sizes, strict=True))


def dynamic_slice(op: Op, x: Array, *starts: Array) -> Array:
    """A window, moved into the array."""
    sizes = op.params["slice_sizes"]
    return x[_box(_clamped(starts, sizes, x.shape), sizes)]


def dynamic_update_slice(_: Op, x: Array, update: Array, *starts: Array) -> Array:
    """The array with another window, moved into it."""
    made = x.copy()
    made[_box(_clamped(starts, update.shape, x.shape), update.shape)] = update
    return made


def gather(op: Op, x: Array, indices: Array) -> Array:
    """A window for each index."""
    params, numbers = op.params, op.params["dimension_numbers"]
    sizes = params["slice_sizes"]
    fills = params["mode"].name == "FILL_OR_DROP"
    result = np.zeros(op.result.shape, x.dtype)
    offset = numbers.offset_dims
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    batch_axes = [d for d in range(result.ndim) if d not in offset]
    shape = indices.shape[:-1]
    for at in np.ndindex(*shape):
        starts = _starts(
            at, indices[at], x.ndim, numbers.start_index_map,
            zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True),
        )  # fmt: skip
        place: list[Any] = [slice(None)] * result.ndim
        for d, i in zip(batch_axes, at, strict=True):
            place[d] = i
        inside = all(0 <= s <= n - k for s, k, n in zip(starts, sizes, x.shape, strict=True))
        if fills and not inside:
            result[tuple(place)] = fill_value(params["fill_value"], x.dtype)
            continue
        window = x[_box(_clamped(starts, sizes, x.shape), sizes)]
        kept = [n for d, n in enumerate(sizes) if d not in dropped]
        result[tuple(place)] = window.reshape(kept)
    return result


def fill_value(given: Any, dtype: Any) -> Any:
    """What JAX fills with, if nothing is given."""
    if given is not None:
        return given
    if dtype == np.bool_:
        return True
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
    return np.nan


def _starts(at: Any, index: Array, rank: int, dims: Any, batching: Iterator[Any]) -> list[int]:
    starts = [0] * rank
    for d, i in zip(dims, index, strict=True):
        starts[d] = int(i)
    for d, of in batching:
        starts[d] = at[of]
    return starts


def scatter(op: Op, x: Array, indices: Array, updates: Array) -> Array:
    """The array with windows combined into it, in the order of their indices."""
    numbers = op.params["dimension_numbers"]
    clips = op.params["mode"].name == "CLIP"
    combine = COMBINERS[op.name]
    made = x.copy()
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window_dims = numbers.update_window_dims
    sizes_left = [updates.shape[d] for d in window_dims]
    left = iter(sizes_left)
    sizes = [1 if d in gone else next(left) for d in range(x.ndim)]
    batch_dims = [d for d in range(updates.ndim) if d not in window_dims]
    for at in itertools.product(*(range(n) for n in indices.shape[:-1])):
        starts = _starts(
            at, indices[at], x.ndim, numbers.scatter_dims_to_operand_dims,
            zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True),
        )  # fmt: skip
        if clips:
            starts = list(_clamped(starts, sizes, x.shape))
        elif not all(0 <= s <= n - k for s, k, n in zip(starts, sizes, x.shape, strict=True)):
            continue
        place: list[Any] = [slice(None)] * updates.ndim
        for d, i in zip(batch_dims, at, strict=True):
            place[d] = i
        box = _box(starts, sizes)
        made[box] = combine(made[box], updates[tuple(place)].reshape(sizes))
    return made


COMBINERS: dict[str, Any] = {
    "scatter": lambda _, new: new,
    "scatter-add": np.add,
    "scatter-sub": np.subtract,
    "scatter-mul": np.multiply,
    "scatter-min": np.minimum,
    "scatter-max": np.maximum,
}
