"""The window of an array that an op reads or writes, in one form for all of JAX's primitives.

`access(op)` describes `slice`, `dynamic_slice`, `dynamic_update_slice`, and the `gather`, `scatter`
and `scatter-add` of one window: where the window starts on each axis of the array, as a function of
the steps of the enclosing loops, how large it is, and which axis of the value is which axis of the
window. A batched op whose index is the same in all rows is one window of all rows.

A start is known only if the window is in range, so that clamping, dropping and filling change
nothing; negative indices are normalised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jax import lax

from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.analysis.values.induction import affine, component
from jaxpr_opt.analysis.windows.window_primitives import (
    COMBINING,
    indexed_axes,
    replaced,
)
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    combiner_of,
    has_numbers,
    numbers_of,
    slice_sizes_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.bridge.slicing import read_window, write_window
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Region, Value

Kind = Literal["read", "write", "add"]


@dataclass(frozen=True, slots=True)
class Extent:
    """A window along one axis: `size` elements from `start`, None if that is not known."""

    start: Affine | None
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """A window of `array` that is read, written or added to.

    Axis `d` of the value is axis `axes[d]` of the array; None for an axis of size 1 that the array
    does not have.
    """

    op: Op
    kind: Kind
    array: Value
    window: tuple[Extent, ...]
    axes: tuple[int | None, ...]
    indices: tuple[Value, ...]
    """The operands that say where."""

    @property
    def value(self) -> Value:
        """The value that is read, written or added. It is looked up each time, because another may
        replace it.
        """
        if self.kind == "read":
            return self.op.result
        return self.op.operands[1 if self.op.name == "dynamic_update_slice" else 2]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The window's shape, with all axes of the array."""
        return tuple(extent.size for extent in self.window)

    @property
    def is_located(self) -> bool:
        """Whether all starts are known."""
        return all(extent.start is not None for extent in self.window)

    @property
    def nbytes(self) -> int:
        """Bytes of the window."""
        return dtypes.nbytes(self.sizes, self.array.dtype)

    def to_window(self, value: jax.Array) -> jax.Array:
        """The value with the shape of the window."""
        present = [d for d, axis in enumerate(self.axes) if axis is not None]
        absent = [d for d, axis in enumerate(self.axes) if axis is None]
        order = [*sorted(present, key=lambda d: self.axes[d] or 0), *absent]
        return lax.reshape(lax.transpose(value, order), self.sizes)

    def from_window(self, window: jax.Array) -> jax.Array:
        """A window with the shape of the value."""
        present = sorted(axis for axis in self.axes if axis is not None)
        short = lax.reshape(window, tuple(window.shape[axis] for axis in present))
        moved = lax.transpose(short, [present.index(a) for a in self.axes if a is not None])
        return lax.reshape(moved, self.value.shape)

    def starts(self, *indices: jax.Array) -> list[Any]:
        """Where the window starts on each axis, from the operands that say so; of a window whose
        start is known to be constant, that.

        A gather or scatter must be located: each row of a batch may have a place of its own, out of
        range too.
        """
        return [
            extent.start.offset
            if extent.start is not None and extent.start.is_constant
            else self._start(axis, indices)
            for axis, extent in enumerate(self.window)
        ]

    def _start(self, axis: int, indices: Sequence[jax.Array]) -> jax.Array:
        if not has_numbers(self.op):
            return indices[axis]
        (index,) = indices
        at = (*(0 for _ in index.shape[:-1]), self.component(axis))
        return lax.reshape(lax.slice(index, at, [i + 1 for i in at]), ())

    def component(self, axis: int) -> int:
        """Which component of a gather's or scatter's index is the start along an axis."""
        return indexed_axes(self.op).index(axis)

    def sliced(self, array: jax.Array, starts: Sequence[Any], *value: jax.Array) -> jax.Array:
        """The same access by slices, where each window starts at one known place: what is read, or
        the array with the value written or added.
        """
        if self.kind == "write":
            return write_window(array, self.to_window(*value), starts)
        old = read_window(array, starts, self.sizes)
        if self.kind == "read":
            return self.from_window(old)
        return write_window(array, lax.add(old, self.to_window(*value)), starts)

    def read(self, array: jax.Array, *indices: jax.Array) -> jax.Array:
        """The elements that a write or an addition replaces, in the shape of its value.

        Rows of a scatter that are out of range read as zero.
        """
        return replaced(self.op, array, *indices)

    def again(self, array: jax.Array, value: jax.Array, *indices: jax.Array) -> jax.Array:
        """The result of the op on another array and another value, there or at other places."""
        primitive, params = self.op.primitive, self.op.params
        assert primitive is not None
        operands = (
            (value, *indices) if self.op.name == "dynamic_update_slice" else (*indices, value)
        )
        made: jax.Array = primitive.bind(array, *operands, **params)
        return made


@remembered
def access(op: Op) -> Access | None:
    """The window that an op reads, writes or adds to; None if it does not, or in another way."""
    rule = _RULES.get(op.name)
    return rule(op) if rule is not None and not is_sharded(op.operands[0]) else None


@remembered
def combined(op: Op) -> Access | None:
    """The window that an op combines with an update; None if it combines none, or several."""
    return _scatter(op) if op.name in COMBINING and not is_sharded(op.operands[0]) else None


def writes_in_a_row(value: Value, region: Region | None, kinds: Set[Kind]) -> Iterator[Access]:
    """The windows by which ops of a region, if one is given, make a value, each of one of these
    kinds and into what the next makes: last to first.
    """
    while value.op is not None and region in {None, value.op.region}:
        found = access(value.op)
        if found is None or found.kind not in kinds:
            return
        yield found
        value = found.array


def reads_window(op: Op, array: Value) -> bool:
    """Whether an op reads only a window of the array."""
    read = access(op)
    return read is not None and read.kind == "read" and array not in read.indices


def _slice(op: Op) -> Access | None:
    if any(stride != 1 for stride in strides_of(op)):
        return None
    window = [Extent(Affine(s), n) for s, n in zip(starts_of(op), op.result.shape, strict=True)]
    return _plain(op, "read", op.result, window, ())


def _dynamic_slice(op: Op) -> Access:
    array, *starts = op.operands
    window = [
        _extent(affine(s), size, n)
        for s, size, n in zip(starts, slice_sizes_of(op), array.shape, strict=True)
    ]
    return _plain(op, "read", op.result, window, starts)


def _dynamic_update_slice(op: Op) -> Access:
    array, update, *starts = op.operands
    window = [
        _extent(affine(s), size, n)
        for s, size, n in zip(starts, update.shape, array.shape, strict=True)
    ]
    return _plain(op, "write", update, window, starts)


def _plain(
    op: Op, kind: Kind, value: Value, window: Sequence[Extent], indices: Sequence[Value]
) -> Access:
    axes = tuple(range(len(value.shape)))
    return Access(op, kind, op.operands[0], tuple(window), axes, tuple(indices))


def _gather(op: Op) -> Access | None:
    numbers = numbers_of(op)
    where = _Where(
        numbers.start_index_map,
        numbers.collapsed_slice_dims,
        numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
        numbers.offset_dims,
    )
    array, indices = op.operands
    return where.access(op, "read", array, indices, op.result, slice_sizes_of(op))


def _scatter(op: Op) -> Access | None:
    if op.name == "scatter" and combiner_of(op) is not None:
        return None
    numbers = numbers_of(op)
    where = _Where(
        numbers.scatter_dims_to_operand_dims,
        numbers.inserted_window_dims,
        numbers.operand_batching_dims,
        numbers.scatter_indices_batching_dims,
        numbers.update_window_dims,
    )
    array, indices, update = op.operands
    missing = {*where.collapsed, *where.batching}
    kept = iter(where.window_dims)
    sizes = [1 if d in missing else update.shape[next(kept)] for d in range(len(array.shape))]
    kind: Kind = "add" if op.name == "scatter-add" else "write"
    return where.access(op, kind, array, indices, update, sizes)


@dataclass(frozen=True, slots=True)
class _Where:
    """The dimension numbers that gather and scatter have in common."""

    indexed: tuple[int, ...]
    """The axis of the array that each component of the index is for."""
    collapsed: tuple[int, ...]
    batching: tuple[int, ...]
    index_batching: tuple[int, ...]
    window_dims: tuple[int, ...]
    """The axes of the value that are axes of the window."""

    def access(
        self, op: Op, kind: Kind, array: Value, index: Value, value: Value, sizes: Sequence[int]
    ) -> Access | None:
        """The access of one window, or of one a row of a batch."""
        lead = len(index.shape) - 1
        # Condition 1 of slice-known-windows.
        if any(index.shape[d] != 1 for d in range(lead) if d not in self.index_batching):
            return None
        window = []
        for axis, n in enumerate(array.shape):
            if axis in self.batching:
                window.append(Extent(Affine(0), n))
            elif axis in self.indexed:
                start = component(index, self.indexed.index(axis))
                uniform = start is not None and not any(start.strides)
                # Condition 1 of slice-known-windows.
                at = Affine(start.offset, (), start.steps) if start and uniform else None
                window.append(_extent(at, sizes[axis], n))
            else:
                window.append(Extent(Affine(0), sizes[axis]))
        axes = self._axes(array, value)
        return Access(op, kind, array, tuple(window), axes, (index,))

    def _axes(self, array: Value, value: Value) -> tuple[int | None, ...]:
        """For each axis of the value, the axis of the array that it is."""
        kept = [d for d in range(len(array.shape)) if d not in {*self.collapsed, *self.batching}]
        of_window = dict(zip(self.window_dims, kept, strict=True))
        of_batch = dict(zip(self.index_batching, self.batching, strict=True))
        others = iter(range(len(value.shape)))  # the value's other axes are the index's, in order
        return tuple(
            of_window[d] if d in of_window else of_batch.get(next(others))
            for d in range(len(value.shape))
        )


def _extent(start: Affine | None, size: int, n: int) -> Extent:
    """A window along an axis of `n` elements: its start is known if it is always in range."""
    if start is None:
        return Extent(None, size)
    low, high = start.range(())
    # Condition 2 of slice-known-windows.
    return Extent(start if low >= 0 and high <= n - size else None, size)


_RULES: dict[str, Any] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "slice": _slice,
}
