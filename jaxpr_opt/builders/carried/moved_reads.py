"""Windows of what an op moves, read of its operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.carried.moved_reads import MovedRead, of_reshape
from jaxpr_opt.analysis.windows.reshaped import reshaped_window
from jaxpr_opt.bridge.parameters import (
    broadcast_dimensions_of,
    dimension_of,
    dimensions_of,
    numbers_of,
    padding_of,
    permutation_of,
    sizes_of,
    starts_of,
)
from jaxpr_opt.bridge.slicing import in_range, read_window, shifted
from jaxpr_opt.ir.graph import Value

Starts = list[Any]
"""Where a window starts along each axis: a number, or an `int32`."""


@dataclass(frozen=True, slots=True)
class _Array:
    """An array, or one row of each batch that it has along some axes."""

    of: jax.Array
    batch: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """With these axes, of one row each."""
        shape = list(self.of.shape)
        for axis in self.batch:
            shape.insert(axis, 1)
        return tuple(shape)

    def window(self, starts: Sequence[Any], sizes: Sequence[int]) -> jax.Array:
        """A window that starts in range."""
        kept = [d for d in range(len(sizes)) if d not in self.batch]
        found = read_window(self.of, [starts[d] for d in kept], [sizes[d] for d in kept])
        return lax.expand_dims(found, self.batch) if self.batch else found


Arrays = Sequence[_Array]


def windows_of_operands(found: MovedRead, *operands: jax.Array) -> jax.Array:
    """What is read, of the parts that are put together, and of what says where."""
    count = len(found.parts)
    places = operands[count:]
    if found.read.name == "gather":
        return _gathered(found, operands[:count], *places)
    arrays = [*map(_Array, operands[:count])]
    if found.read.name == "slice":
        return _window(found, arrays, list(starts_of(found.read)))
    ends = zip(places, found.shape, found.sizes, strict=True)
    return _window(found, arrays, [_nearest(at, n - size) for at, n, size in ends])


def _gathered(found: MovedRead, arrays: Sequence[jax.Array], places: jax.Array) -> jax.Array:
    """Windows at several places, one for each row along the leading axes of these."""
    numbers, lead = numbers_of(found.read), places.ndim - 1
    missing = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [n for d, n in enumerate(found.sizes) if d not in missing]
    along = tuple(numbers.start_indices_batching_dims)
    rows = [dict(zip(along, its, strict=True)) if its else {} for its in found.rows]

    def at_place(arrays: Sequence[jax.Array], place: jax.Array) -> jax.Array:
        batches = [tuple(sorted(its)) for its in found.rows]
        starts: Starts = [0] * len(found.shape)
        is_inside = np.True_
        for at, axis in enumerate(numbers.start_index_map):
            starts[axis] = _nearest(place[at], found.shape[axis] - found.sizes[axis])
            is_inside &= place[at] == starts[axis]
        window = _window(found, [*map(_Array, arrays, batches)], starts)
        window = lax.reshape(window, kept)
        if found.fill is None:
            return window
        return jnp.where(is_inside, window, np.asarray(found.fill, window.dtype))

    read: Callable[..., jax.Array] = at_place
    for d in reversed(range(lead)):
        read = jax.vmap(read, in_axes=([_axis_left(its, d) for its in rows], 0))
    windows = read(list(arrays), places)
    outer, inner = iter(range(lead)), iter(range(lead, windows.ndim))
    order = [next(inner if d in numbers.offset_dims else outer) for d in range(windows.ndim)]
    return lax.transpose(windows, order)


def _axis_left(rows: Mapping[int, int], d: int) -> int | None:
    """Which axis the rows along one axis of the places are, without those along the axes before."""
    if d not in rows:
        return None
    return rows[d] - sum(axis < rows[d] for before, axis in rows.items() if before < d)


def _nearest(start: Any, last: int) -> Any:
    """The nearest start that is in range."""
    if isinstance(start, int):
        return min(max(start, 0), last)
    return in_range(start, last) if last else 0


def _window(found: MovedRead, arrays: Arrays, starts: Starts) -> jax.Array:
    """The window that starts there of what the op makes of these arrays."""
    return _WINDOWS[found.move.name](found, arrays, starts)


def _of_broadcast(found: MovedRead, arrays: Arrays, starts: Starts) -> jax.Array:
    (array,), dims = arrays, broadcast_dimensions_of(found.move)
    sizes = [min(n, found.sizes[d]) for n, d in zip(array.shape, dims, strict=True)]
    at = [_nearest(starts[d], n - 1) for n, d in zip(array.shape, dims, strict=True)]
    return lax.broadcast_in_dim(array.window(at, sizes), found.sizes, dims)


def _of_slice(found: MovedRead, arrays: Arrays, starts: Starts) -> jax.Array:
    first = starts_of(found.move)
    at = [start + before for start, before in zip(starts, first, strict=True)]
    return arrays[0].window(at, found.sizes)


def _of_dynamic_slice(found: MovedRead, arrays: Arrays, starts: Starts) -> jax.Array:
    array, *others = arrays
    first = [each.of for each in others]
    last = [n - size for n, size in zip(array.shape, found.shape, strict=True)]
    at = [s + _nearest(f, end) for s, f, end in zip(starts, first, last, strict=True)]
    return array.window(at, found.sizes)


def _of_transpose(found: MovedRead, arrays: Arrays, starts: Starts) -> jax.Array:
    order = permutation_of(found.move)
    back = [order.index(d) for d in range(len(order))]
    window = arrays[0].window([starts[d] for d in back], [found.sizes[d] for d in back])
    return lax.transpose(window, order)


def _of_rev(found: MovedRead, arrays: Arrays, starts: Starts) -> jax.Array:
    (array,), turned = arrays, dimensions_of(found.move)
    ends = zip(found.shape, found.sizes, starts, strict=True)
    at = [n - size - s if d in turned else s for d, (n, size, s) in enumerate(ends)]
    return lax.rev(array.window(at, found.sizes), turned)


def _of_pad(found: MovedRead, arrays: Arrays, starts: Starts) -> jax.Array:
    array, number = arrays
    config = padding_of(found.move)
    at = [start - low for start, (low, _, _) in zip(starts, config, strict=True)]
    padded = [d for d, (low, high, _) in enumerate(config) if (low, high) != (0, 0)]
    return _around(array, at, found.sizes, padded, number.of)


def _around(
    array: _Array, starts: Starts, sizes: Sequence[int], axes: Sequence[int], number: Any
) -> jax.Array:
    """A window of an array that is another number wherever it has no elements along some axes: what
    the nearest window has, moved.
    """
    known = [d for d in axes if isinstance(starts[d], int)]
    axes = [d for d in axes if d not in known]
    at, within = list(starts), list(sizes)
    around = [(0, 0, 0)] * len(sizes)
    for d in known:
        first, end = max(starts[d], 0), min(starts[d] + sizes[d], array.shape[d])
        if first >= end:
            return jnp.full(sizes, number, array.of.dtype)
        at[d], within[d] = first, end - first
        around[d] = first - starts[d], starts[d] + sizes[d] - end, 0
    for d in axes:
        within[d] = min(sizes[d], array.shape[d])
        at[d] = _nearest(starts[d], array.shape[d] - within[d])
    window = array.window(at, within)
    if any(map(any, around)):
        window = lax.pad(window, number, around)
    for d in axes:
        window = shifted(window, starts[d] - at[d], sizes[d], d, number)
    return window


def _of_concatenate(found: MovedRead, arrays: Arrays, starts: Starts) -> jax.Array:
    axis, operands = dimension_of(found.move), found.move.operands
    begins = [0, *accumulate(v.shape[axis] for v in operands)][:-1]
    start, size = starts[axis], found.sizes[axis]
    places = [start - begin for begin in begins]
    every = [*zip(arrays, places, strict=False)]

    def rows(array: _Array, place: Any, count: int = 1) -> jax.Array:
        at = [place if d == axis else start for d, start in enumerate(starts)]
        return array.window(at, [count if d == axis else n for d, n in enumerate(found.sizes)])

    if len(arrays) < len(operands):
        of_whole = [at + _first(v, axis) for at, v in zip(places, operands, strict=True)]
        return rows(arrays[0], _chosen(start, begins, of_whole))
    if isinstance(start, int):
        ends = [(max(at, 0), min(at + size, array.shape[axis])) for array, at in every]
        parts = zip(arrays, ends, strict=True)
        pieces = [rows(array, at, end - at) for array, (at, end) in parts if end > at]
        return lax.concatenate(pieces, axis)
    if size == 1:
        cases = [rows(array, _nearest(at, array.shape[axis] - 1)) for array, at in every]
        chosen: jax.Array = _chosen(start, begins, cases)
        return chosen
    number = np.zeros((), found.array.dtype)
    whole = [[at if d == axis else start for d, start in enumerate(starts)] for at in places]
    windows = [
        _around(array, at, found.sizes, [axis], number)
        for array, at in zip(arrays, whole, strict=True)
    ]
    numbers = lax.broadcasted_iota(np.int32, found.sizes, axis) + start
    put_together: jax.Array = _chosen(numbers, begins, windows)
    return put_together


def _chosen(place: Any, begins: Sequence[int], cases: Sequence[Any]) -> Any:
    """The case of the part that a place is in."""
    made = cases[0]
    for begin, case in zip(begins[1:], cases[1:], strict=True):
        if isinstance(place, int):
            made = case if place >= begin else made
        else:
            made = jnp.where(place >= begin, case, made)
    return made


def _first(part: Value, axis: int) -> int:
    """Where a part begins in the array that it is a slice of."""
    return starts_of(part.op)[axis] if part.op is not None and part.op.name == "slice" else 0


def _of_stack(found: MovedRead, arrays: Arrays, starts: Starts) -> jax.Array:
    axis = dimension_of(found.move)
    at = [start for d, start in enumerate(starts) if d != axis]
    sizes = [size for d, size in enumerate(found.sizes) if d != axis]
    rows = [lax.expand_dims(array.window(at, sizes), (axis,)) for array in arrays]
    if found.sizes[axis] == len(rows):
        return lax.concatenate(rows, axis)
    if isinstance(starts[axis], int):
        return rows[starts[axis]]
    made, *others = rows
    for number, row in enumerate(others, 1):
        made = jnp.where(starts[axis] == number, row, made)
    return made


def _of_unstack(found: MovedRead, arrays: Arrays, starts: Starts) -> jax.Array:
    axis, row = dimension_of(found.move), found.move.results.index(found.array)
    at, sizes = list(starts), list(found.sizes)
    at.insert(axis, row)
    sizes.insert(axis, 1)
    return lax.squeeze(arrays[0].window(at, sizes), (axis,))


def _of_split(found: MovedRead, arrays: Arrays, starts: Starts) -> jax.Array:
    axis, part = dimension_of(found.move), found.move.results.index(found.array)
    before = sum(sizes_of(found.move)[:part])
    at = [start + before if d == axis else start for d, start in enumerate(starts)]
    return arrays[0].window(at, found.sizes)


def _of_reshape(found: MovedRead, arrays: Arrays, starts: Starts) -> jax.Array:
    window = reshaped_window(found.shape, found.sizes, of_reshape(found))
    assert window is not None
    sizes, of = window
    at = of([np.int32(start) if isinstance(start, int) else start for start in starts])
    return lax.reshape(arrays[0].window(at, sizes), found.sizes)


_WINDOWS: Mapping[str, Callable[[MovedRead, Arrays, Starts], jax.Array]] = {
    "broadcast_in_dim": _of_broadcast,
    "concatenate": _of_concatenate,
    "dynamic_slice": _of_dynamic_slice,
    "pad": _of_pad,
    "reshape": _of_reshape,
    "rev": _of_rev,
    "slice": _of_slice,
    "split": _of_split,
    "squeeze": _of_reshape,
    "stack": _of_stack,
    "transpose": _of_transpose,
    "unstack": _of_unstack,
}
