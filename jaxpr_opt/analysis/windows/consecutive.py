"""Rows that a gather or scatter accesses at consecutive places: together they are one window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import jax
from jax import lax

from jaxpr_opt.analysis.values.affine import Affine, spread
from jaxpr_opt.analysis.values.induction import component
from jaxpr_opt.analysis.windows.access import Access, Extent
from jaxpr_opt.analysis.windows.window_primitives import indexed_axes, mirrored, window_sizes
from jaxpr_opt.bridge.parameters import combiner_of, numbers_of, slice_sizes_of
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Value


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The window that rows are together."""

    access: Access
    first: tuple[int, ...]
    """Which index is that of the window's start, by the leading axes of the indices."""
    reversed: tuple[int, ...]
    """The axes of the array along which the last row comes first."""

    @property
    def indexed(self) -> tuple[int, ...]:
        """The axis of the array that each component of the indices is for."""
        return indexed_axes(self.access.op)

    def start(self, indices: jax.Array) -> jax.Array:
        """The index at which the window starts; of rows of indices, those."""
        before = indices.ndim - 1 - len(self.first)
        at = (*(0 for _ in range(before)), *self.first, 0)
        sizes = (*indices.shape[:before], *(1 for _ in self.first), indices.shape[-1])
        end = [i + n for i, n in zip(at, sizes, strict=True)]
        return lax.reshape(lax.slice(indices, at, end), (*sizes[:before], sizes[-1]))

    def rows(self, window: jax.Array) -> jax.Array:
        """The rows of a window, as the op reads them."""
        return self.access.from_window(self._turned(window))

    def window(self, rows: jax.Array) -> jax.Array:
        """The window of rows, as the op writes them."""
        return self._turned(self.access.to_window(rows))

    def _turned(self, window: jax.Array) -> jax.Array:
        return lax.rev(window, self.reversed) if self.reversed else window


@dataclass(frozen=True, slots=True)
class _Moves:
    """Where rows are along one axis of the array."""

    start: Affine
    size: int
    along: int | None
    """The leading axis of the indices that moves them."""
    stride: int


@remembered
def consecutive(op: Op) -> Block | None:
    """The window that the rows of a gather or scatter are together; None if they are none."""
    array, indices = op.operands[:2]
    numbers = numbers_of(op) if op.name == "gather" else mirrored(op)
    lead = indices.shape[:-1]
    # Condition 4 of join-consecutive-rows.
    if numbers.operand_batching_dims or is_sharded(array) or prod(lead) < 2 or _has_function(op):
        return None
    sizes = slice_sizes_of(op) if op.name == "gather" else window_sizes(op)
    found: dict[int, _Moves] = {}
    for number, axis in enumerate(numbers.start_index_map):
        start = component(indices, number)
        moves = None if start is None else _moves(start, lead, sizes[axis], array.shape[axis])
        if moves is None:
            return None
        found[axis] = moves
    along = {moves.along: axis for axis, moves in found.items() if moves.along is not None}
    # Condition 1 of join-consecutive-rows.
    if sorted(along) != [d for d, n in enumerate(lead) if n > 1] or _are_shared(found):
        return None
    window = [
        Extent(found[axis].start, found[axis].size) if axis in found else Extent(Affine(0), size)
        for axis, size in enumerate(sizes)
    ]
    kind: Literal["read", "write", "add"] = "read"
    if op.name != "gather":
        kind = "add" if op.name == "scatter-add" else "write"
    value = op.result if kind == "read" else op.operands[2]
    axes = _axes(numbers, len(array.shape), value, along)
    back = {axis for axis, moves in found.items() if moves.stride < 0}
    first = tuple(n - 1 if along.get(d) in back else 0 for d, n in enumerate(lead))
    access = Access(op, kind, array, tuple(window), axes, (indices,))
    return Block(access, first, tuple(sorted(back)))


def axes_of_runs(op: Op) -> frozenset[int]:
    """The axes of its array along which the places of a gather or scatter go on one by one."""
    array, indices = op.operands[:2]
    found = set(numbers_of(op).operand_batching_dims)
    for number, axis in enumerate(indexed_axes(op)):
        start = component(indices, number)
        lead, n = indices.shape[:-1], array.shape[axis]
        moves = None if start is None else _moves(start, lead, 1, n)
        if moves is not None and moves.along is not None:
            found.add(axis)
    return frozenset(found)


def _has_function(op: Op) -> bool:
    return op.name == "scatter" and combiner_of(op) is not None


def _are_shared(found: dict[int, _Moves]) -> bool:
    """Whether one axis of the indices moves rows along two axes, as on a diagonal."""
    along = [moves.along for moves in found.values() if moves.along is not None]
    return len(set(along)) < len(along)


def _moves(start: Affine, lead: tuple[int, ...], size: int, n: int) -> _Moves | None:
    """How rows move along an axis of `n` elements, if by one place and in range."""
    strides = spread(start, lead).strides
    moving = [(d, stride) for d, stride in enumerate(strides) if stride]
    low, high = spread(start, lead).range(lead)
    # Condition 2 of join-consecutive-rows.
    if low < 0 or high + size > n:
        return None
    if not moving:
        return _Moves(Affine(start.offset, (), start.steps), size, None, 1)
    (d, stride), *others = moving
    # Condition 1 of join-consecutive-rows.
    if others or abs(stride) != 1:
        return None
    # Condition 3 of join-consecutive-rows.
    if size != 1:
        return None
    least = start.offset + min(0, stride * (lead[d] - 1))
    return _Moves(Affine(least, (), start.steps), lead[d], d, stride)


def _axes(numbers: Any, rank: int, value: Value, along: dict[int, int]) -> tuple[int | None, ...]:
    """For each axis of the value, the axis of the array that it is; a row's own axis of one element
    is none where rows move along it.
    """
    kept: Sequence[int] = [d for d in range(rank) if d not in numbers.collapsed_slice_dims]
    own = [None if axis in along.values() else axis for axis in kept]
    of_window = dict(zip(numbers.offset_dims, own, strict=True))
    others = iter(range(len(value.shape)))  # the value's other axes are the indices', in order
    return tuple(
        of_window[d] if d in of_window else along.get(next(others)) for d in range(len(value.shape))
    )
