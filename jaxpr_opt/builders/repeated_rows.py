"""Sum what one scatter adds to the same row of an array, or find what it leaves there, without it.

Some windows of a scatter may be the same. Equal windows share a slot, that of the first of them;
each gets the sum in its slot, in the order of the windows, as the scatter itself adds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.windows.scatter_chains import Piece
from jaxpr_opt.analysis.windows.window_primitives import mirrored, window_sizes
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import mode_of, numbers_of
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Value

_IN_RANGE: Any = {"mode": "promise_in_bounds", "wrap_negative_indices": False}


def has_rows(piece: Piece) -> bool:
    """Whether any two windows of a scatter are equal or disjoint."""
    numbers, sizes = mirrored(piece.op), window_sizes(piece.op)
    shape = piece.result.shape
    return all(sizes[axis] in {1, shape[axis]} for axis in numbers.start_index_map)


def is_batched(piece: Piece) -> bool:
    """Whether a scatter adds to windows of a batch, each row of it in its part of the array."""
    return bool(numbers_of(piece.op).operand_batching_dims)


def is_less(groups: Iterable[Sequence[Piece]], nbytes: int) -> bool:
    """Whether moving the windows of pieces, and comparing the places of those in one group, takes
    no longer than moving an array of so many bytes.
    """
    prices, each = cost_model(), [list(group) for group in groups]
    compared = sum(
        4 * sum(max(_windows(piece), 1) for piece in group) ** 2 // max(1, *map(_batch, group))
        for group in each
    )
    moved = sum(piece.nbytes for group in each for piece in group)
    return prices.is_sparse(moved, nbytes) and prices.streamed(compared) <= prices.moved(nbytes)


def by_row(piece: Piece, index: jax.Array, update: jax.Array) -> jax.Array:
    """For each window, the sum of all updates to its row; equal windows get equal sums."""
    return _by_row(piece, index, update, "add")


def last_by_row(piece: Piece, index: jax.Array, update: jax.Array) -> jax.Array:
    """For each window, the last of all updates to its row."""
    return _by_row(piece, index, update, "set")


def _by_row(
    piece: Piece, index: jax.Array, update: jax.Array, put: Literal["add", "set"]
) -> jax.Array:
    lead, order = _order(piece, update)
    batch = numbers_of(piece.op).scatter_indices_batching_dims
    first = [*batch, *(axis for axis in range(lead) if axis not in batch)]
    order = [*(order[axis] for axis in first), *order[lead:]]
    moved = lax.transpose(update, order)
    where = lax.transpose(_in_range(piece, index), [*first, lead])
    slots = _slots_in_batch(where, len(batch))
    rows = lax.reshape(moved, (len(slots), *moved.shape[lead:]))
    shared = lax.reshape(_left(rows, slots, slots, put), moved.shape)
    return lax.transpose(shared, [order.index(axis) for axis in range(update.ndim)])


def is_alike(piece: Piece, other: Piece) -> bool:
    """Whether two scatters add to windows of one form, in arrays of one shape."""
    return _form(piece) == _form(other)


def _form(piece: Piece) -> tuple[Any, ...]:
    numbers = mirrored(piece.op)
    axes = numbers.collapsed_slice_dims, numbers.start_index_map
    index = piece.indices[0].dtype
    return piece.result.shape, window_sizes(piece.op), axes, mode_of(piece.op), index


class Rows:
    """All the windows that scatters of one form add to, one after the other."""

    def __init__(
        self, pieces: Sequence[Piece], indices: Sequence[jax.Array], updates: Sequence[jax.Array]
    ) -> None:
        given = list(zip(pieces, indices, updates, strict=True))
        where = [lax.reshape(i, (_count(i), i.shape[-1])) for _, i, _ in given]
        self._piece = pieces[0]
        self._index = lax.concatenate(where, 0)
        slots = _slots(_in_range(self._piece, self._index))
        ends = accumulate((len(i) for i in where), initial=0)
        self.sums = [
            _left(_rows(p, i, u), lax.slice(slots, (first,), (last,)), slots, "add")
            for (p, i, u), (first, last) in zip(given, pairwise(ends), strict=True)
        ]
        """For each scatter, what it adds to the row of each window."""

    def read(self, array: jax.Array) -> jax.Array:
        """The rows of another array: zeros where they are out of range and dropped."""
        axes = tuple(range(1, self.sums[0].ndim))
        numbers = mirrored(self._piece.op)._replace(offset_dims=axes)
        sizes, mode = window_sizes(self._piece.op), mode_of(self._piece.op)
        return lax.gather(array, self._index, numbers, sizes, mode=mode, fill_value=0)

    def write(self, array: jax.Array, rows: jax.Array) -> jax.Array:
        """Another array with other rows."""
        axes = tuple(range(1, self.sums[0].ndim))
        numbers = numbers_of(self._piece.op)._replace(update_window_dims=axes)
        return lax.scatter(array, self._index, rows, numbers, mode=mode_of(self._piece.op))


def _windows(piece: Piece) -> int:
    """How many windows an op adds to."""
    return _count(piece.indices[0]) if piece.repeats else 1


def _batch(piece: Piece) -> int:
    """How many rows of a batch an op adds to, each with windows of its own."""
    if not piece.repeats:
        return 1
    shape = piece.indices[0].shape
    return math.prod(shape[axis] for axis in numbers_of(piece.op).scatter_indices_batching_dims)


def _left(
    rows: jax.Array, own: jax.Array, slots: jax.Array, put: Literal["add", "set"]
) -> jax.Array:
    """What rows, each of which is added to its own slot, or set there, leave for each window."""
    empty = jnp.zeros((len(slots), *rows.shape[1:]), rows.dtype)
    left: jax.Array = getattr(empty.at[own], put)(rows, **_IN_RANGE)
    return left.at[slots].get(**_IN_RANGE)


def _count(index: jax.Array | Value) -> int:
    return math.prod(index.shape[:-1])


def _order(piece: Piece, update: jax.Array) -> tuple[int, list[int]]:
    """How many axes of an update number its windows, and all of them, those first."""
    windows = numbers_of(piece.op).update_window_dims
    lead = [axis for axis in range(update.ndim) if axis not in windows]
    return len(lead), [*lead, *windows]


def _rows(piece: Piece, index: jax.Array, update: jax.Array) -> jax.Array:
    """The windows of an update, one after the other."""
    lead, order = _order(piece, update)
    moved = lax.transpose(update, order)
    return lax.reshape(moved, (_count(index), *moved.shape[lead:]))


def _in_range(piece: Piece, index: jax.Array) -> jax.Array:
    """Where windows are: an index that is clamped is another's."""
    if mode_of(piece.op) != lax.GatherScatterMode.CLIP:
        return index
    _, most = dtypes.limits(index.dtype)
    axes, sizes = mirrored(piece.op).start_index_map, window_sizes(piece.op)
    last = [min(piece.result.shape[axis] - sizes[axis], most) for axis in axes]
    low, high = np.zeros_like(last, index.dtype), np.asarray(last, index.dtype)
    return jnp.clip(index, low, high)


def _slots_in_batch(index: jax.Array, batch: int) -> jax.Array:
    """For each window of a batch, which is the first like it in the same row of the batch."""
    count, parts = _count(index), math.prod(index.shape[:batch])
    if not batch or not count:
        return _slots(lax.reshape(index, (count, index.shape[-1])))
    each = count // parts
    slots = jax.vmap(_slots)(lax.reshape(index, (parts, each, index.shape[-1])))
    begin = lax.broadcasted_iota(np.int32, slots.shape, 0) * np.int32(each)
    return lax.reshape(slots + begin, (count,))


def _slots(index: jax.Array) -> jax.Array:
    """For each row of an index, which is the first like it."""
    alike = jnp.all(index[:, None] == index[None], axis=-1)
    places = lax.broadcasted_iota(np.int32, alike.shape, 1)
    return jnp.min(jnp.where(alike, places, np.int32(len(index))), axis=1)
