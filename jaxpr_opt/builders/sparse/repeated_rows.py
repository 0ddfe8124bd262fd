"""Sum what one scatter adds to the same row of an array, without the array.

Some windows of a scatter may be the same. Equal windows share a slot, that of one of them; each
gets the sum in its slot, in the order of the windows, as the scatter itself adds. Which windows are
equal, all pairs tell if they are few; else each leaves its number in an array of all places, and
reads who was the last (Briggs and Torczon, "An efficient representation for sparse sets", 1993).
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

from jaxpr_opt.analysis.sparse.scatter_chains import SCATTERS, Piece
from jaxpr_opt.analysis.windows.window_primitives import (
    indexed_axes,
    is_slice,
    leading_rows,
    row_numbers,
    rows_mirrored,
    single_axes,
    window_sizes,
)
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import mode_of
from jaxpr_opt.bridge.slicing import in_range
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Value

_IN_RANGE: Any = {"mode": "promise_in_bounds", "wrap_negative_indices": False}


def has_rows(piece: Piece) -> bool:
    """Whether any two windows of a scatter are equal or disjoint, or so that of a slice and any
    other.
    """
    sizes, shape = window_sizes(piece.op), piece.result.shape
    placed = rows_mirrored(piece.op).start_index_map
    axes = range(len(shape)) if is_slice(piece.op) else placed
    return all(sizes[axis] in {1, shape[axis]} for axis in axes)


def is_less(groups: Iterable[Sequence[Piece]], nbytes: int) -> bool:
    """Whether moving the windows of pieces, and finding which of one group are the same, takes no
    longer than moving an array of so many bytes.
    """
    prices, each = cost_model(), [list(group) for group in groups]
    moved = sum(piece.nbytes for group in each for piece in group)
    return prices.is_sparse(moved, nbytes) and sum(map(told_apart, each)) <= prices.moved(nbytes)


def told_apart(group: Sequence[Piece]) -> float:
    """Seconds to find which windows of pieces are the same."""
    return min(_compared(group), _marked(group)) if any(each.repeats for each in group) else 0.0


def by_row(piece: Piece, index: jax.Array, update: jax.Array) -> jax.Array:
    """For each window, the sum of all updates to its row; equal windows get equal sums."""
    _, order = _order(piece, update)
    slots = _slots([piece], _flat(piece, index))
    left = _left(_rows(piece, index, update), slots, len(slots), "add").at[slots].get(**_IN_RANGE)
    shared = lax.reshape(left, [update.shape[axis] for axis in order])
    return lax.transpose(shared, [order.index(axis) for axis in range(update.ndim)])


def is_alike(piece: Piece, other: Piece) -> bool:
    """Whether two scatters add to windows of one form, in arrays of one shape; or to rows of arrays
    of as many.
    """
    if not _are_addressed_alike(piece, other):
        return False
    if _form(piece) == _form(other):
        return True
    rows = leading_rows(piece.op)
    one, two = (
        (each.result.shape[:rows], rows_mirrored(each.op).start_index_map)
        for each in (piece, other)
    )
    return rows > 0 and leading_rows(other.op) == rows and one == two


def _form(piece: Piece) -> tuple[Any, ...]:
    numbers = rows_mirrored(piece.op)
    axes = numbers.collapsed_slice_dims, numbers.operand_batching_dims, numbers.start_index_map
    return piece.result.shape, window_sizes(piece.op), axes


def _are_addressed_alike(piece: Piece, other: Piece) -> bool:
    """Whether places have one type, and mean the same out of range: those of a slice are clamped
    to `int32`, and never are.
    """
    placed = [each for each in (piece, other) if not is_slice(each.op)]
    types = {each.indices[0].dtype for each in placed}
    if len(placed) == 1:
        types.add(np.dtype(np.int32))
    return len(types) < 2 and len({mode_of(each.op) for each in placed}) < 2


class ScatteredRows:
    """All the windows that scatters of one form add to, one after the other; those of scatters that
    read the same places once.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        indices: Sequence[Sequence[jax.Array]],
        updates: Sequence[jax.Array],
    ) -> None:
        laid = zip(*map(_laid, pieces, indices, updates), strict=True)
        given = list(zip(pieces, *laid, strict=True))
        where = {_where(piece): _flat(piece, index) for piece, index, _ in given}
        self._piece = pieces[0]
        self._index = lax.concatenate([*where.values()], 0)
        slots = _slots(pieces, self._index)
        is_slot = lax.eq(slots, lax.iota(slots.dtype, len(slots)))
        nowhere = lax.full_like(self._index, dtypes.limits(self._index.dtype)[1])
        self._written = jnp.where(is_slot[:, None], self._index, nowhere)
        ends = accumulate((len(i) for i in where.values()), initial=0)
        mine = {
            each: lax.slice(slots, (first,), (last,))
            for each, (first, last) in zip(where, pairwise(ends), strict=True)
        }
        self.sums = [
            self._shaped(p, _left(_rows(p, i, u), mine[_where(p)], len(slots), _put(p)))
            for p, i, u in given
        ]
        """For each scatter, what it makes of zeros in the row of each window that is a slot."""

    def read(self, array: jax.Array) -> jax.Array:
        """The rows of another array: zeros where they are out of range and dropped."""
        numbers = lax.GatherDimensionNumbers(
            offset_dims=self._axes(array),
            collapsed_slice_dims=self._left_out,
            start_index_map=_places(self._piece),
        )
        sizes, mode = self._window(array), mode_of(self._piece.op)
        return lax.gather(array, self._index, numbers, sizes, mode=mode, fill_value=0)

    def write(self, array: jax.Array, rows: jax.Array) -> jax.Array:
        """Another array with other rows where windows are slots."""
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=self._axes(array),
            inserted_window_dims=self._left_out,
            scatter_dims_to_operand_dims=_places(self._piece),
        )
        return lax.scatter(array, self._written, rows, numbers, mode="drop")

    @property
    def are_slots(self) -> jax.Array:
        """For each window, whether it is a slot, and in the array."""
        last = np.asarray(_sizes(self._piece)) - 1
        is_in_range = (self._written >= 0) & (self._written <= last.astype(self._index.dtype))
        return jnp.all(is_in_range, axis=-1)

    @property
    def _left_out(self) -> tuple[int, ...]:
        """The axes of an array that its rows do not have."""
        rows = leading_rows(self._piece.op)
        return tuple(range(rows)) if rows else _left_out(self._piece)

    def _window(self, array: jax.Array) -> tuple[int, ...]:
        """The sizes of a window."""
        rows = leading_rows(self._piece.op)
        return (*[1] * rows, *array.shape[rows:]) if rows else window_sizes(self._piece.op)

    def _axes(self, array: jax.Array) -> tuple[int, ...]:
        return tuple(range(1, array.ndim - len(self._left_out) + 1))

    def _shaped(self, piece: Piece, rows: jax.Array) -> jax.Array:
        """Rows of an array of a scatter, which may leave out axes of one element."""
        lead = leading_rows(piece.op)
        return lax.reshape(rows, (len(rows), *piece.result.shape[lead:])) if lead else rows


def _laid(
    piece: Piece, indices: Sequence[jax.Array], update: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Where rows are, and what is added to them; of a slice, without its single axes."""
    if not is_slice(piece.op):
        return indices[0], update
    axes, shape = single_axes(piece.op), piece.result.shape
    starts = dict(enumerate(indices))
    if len(indices) == 1 and piece.op.name in SCATTERS:
        starts = {axis: indices[0][at] for at, axis in enumerate(indexed_axes(piece.op))}
    places = [in_range(starts[axis], shape[axis] - 1) for axis in axes]
    return jnp.stack(places), lax.squeeze(update, axes)


def _put(piece: Piece) -> Literal["add", "set"]:
    return "set" if piece.op.name == "scatter" else "add"


def _where(piece: Piece) -> tuple[tuple[Value, ...], tuple[int, ...]]:
    """The indices of a scatter, and those of their axes that run over a batch."""
    return piece.indices, tuple(row_numbers(piece.op).scatter_indices_batching_dims)


def _compared(pieces: Sequence[Piece]) -> float:
    """Seconds to compare all pairs of windows."""
    return cost_model().paired(_windows(pieces))


def _marked(pieces: Sequence[Piece]) -> float:
    """Seconds to mark the places of windows in an array that is no larger than theirs."""
    windows, sizes = _windows(pieces), _sizes(pieces[0])
    size = mark_of(windows).itemsize * math.prod(sizes)
    is_small = size <= pieces[0].result.nbytes
    return cost_model().marked(windows * len(sizes), size) if is_small else math.inf


def _windows(pieces: Iterable[Piece]) -> int:
    """How many windows ops add to, those at the same places once."""
    one_of = {_where(piece): piece for piece in sorted(pieces, key=lambda each: each.repeats)}
    return sum(
        max(_count(piece.indices[0]), 1) if piece.repeats else 1 for piece in one_of.values()
    )


def _places(piece: Piece) -> tuple[int, ...]:
    """The axes of the array that say which row a window is, those of a batch first."""
    numbers = rows_mirrored(piece.op)
    return *numbers.operand_batching_dims, *numbers.start_index_map


def _sizes(piece: Piece) -> tuple[int, ...]:
    """How many places there are for a window, along each of these axes."""
    sizes, shape = window_sizes(piece.op), piece.result.shape
    return tuple(shape[axis] - sizes[axis] + 1 for axis in _places(piece))


def _left_out(piece: Piece) -> tuple[int, ...]:
    """The axes of the array that a window does not have."""
    numbers = rows_mirrored(piece.op)
    return tuple(sorted((*numbers.operand_batching_dims, *numbers.collapsed_slice_dims)))


def _left(rows: jax.Array, slots: jax.Array, count: int, put: Literal["add", "set"]) -> jax.Array:
    """The slots after rows were added to them, or set there, one after the other."""
    empty = jnp.zeros((count, *rows.shape[1:]), rows.dtype)
    left: jax.Array = getattr(empty.at[slots], put)(rows, **_IN_RANGE)
    return left


def _count(index: jax.Array | Value) -> int:
    return math.prod(index.shape[:-1])


def _order(piece: Piece, update: jax.Array) -> tuple[int, list[int]]:
    """How many axes of an update number its windows, and all of them, those first."""
    windows = row_numbers(piece.op).update_window_dims
    lead = [axis for axis in range(update.ndim) if axis not in windows]
    return len(lead), [*lead, *windows]


def _rows(piece: Piece, index: jax.Array, update: jax.Array) -> jax.Array:
    """The windows of an update, one after the other."""
    lead, order = _order(piece, update)
    moved = lax.transpose(update, order)
    return lax.reshape(moved, (_count(index), *moved.shape[lead:]))


def _flat(piece: Piece, index: jax.Array) -> jax.Array:
    """The places of windows, one after the other: an index that is clamped is another's."""
    batch = row_numbers(piece.op).scatter_indices_batching_dims
    sizes, (_, most) = _sizes(piece), dtypes.limits(index.dtype)
    if any(size > most for size in sizes):
        index, most = lax.convert_element_type(index, np.int32), np.iinfo(np.int32).max
    numbers = [lax.broadcasted_iota(index.dtype, (*index.shape[:-1], 1), axis) for axis in batch]
    places = lax.concatenate([*numbers, index], index.ndim - 1) if batch else index
    places = lax.reshape(places, (_count(index), len(sizes)))
    if mode_of(piece.op) != lax.GatherScatterMode.CLIP:
        return places
    last = [min(size - 1, most) for size in sizes]
    low, high = np.zeros_like(last, places.dtype), np.asarray(last, places.dtype)
    return jnp.clip(places, low, high)


def _slots(pieces: Sequence[Piece], places: jax.Array) -> jax.Array:
    """For each place, the number of one window, always the same, that is there."""
    if _marked(pieces) < _compared(pieces):
        return _last_marks(places, _sizes(pieces[0]))
    alike = jnp.all(places[:, None] == places[None], axis=-1)
    numbers = lax.broadcasted_iota(np.int32, alike.shape, 1)
    return lax.reduce_min(jnp.where(alike, numbers, np.int32(len(places))), (1,))


def _last_marks(places: jax.Array, sizes: Sequence[int]) -> jax.Array:
    """For each place, the number that one of the windows there has left in an array of all places;
    its own for a place out of range.
    """
    axes = tuple(range(len(sizes)))
    own = lax.iota(mark_of(len(places)), len(places))
    marks = lax.scatter(
        jnp.zeros(sizes, own.dtype),
        places,
        own,
        lax.ScatterDimensionNumbers((), axes, axes),
        mode="drop",
    )
    read = lax.GatherDimensionNumbers((), axes, axes)
    found = lax.gather(marks, places, read, (1,) * len(axes), mode="fill", fill_value=-1)
    return jnp.where(found < 0, own, found)


def mark_of(windows: int) -> np.dtype[Any]:
    """The type of numbers of windows."""
    return np.dtype(np.int16 if windows <= np.iinfo(np.int16).max else np.int32)
