"""The row at the number that a one-hot mask compares with, one number for all or one a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.masks.one_hot import Chosen, OneHot
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.slicing import read_window, write_window
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter

IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS
DROP = lax.GatherScatterMode.FILL_OR_DROP


@dataclass(frozen=True, slots=True)
class OneHotRows:
    """Rows of arrays of one shape at the place of a mask."""

    mask: OneHot
    shape: tuple[int, ...]

    @property
    def are_known(self) -> bool:
        """Whether there is one at all times."""
        return self.mask.is_in_range(self.shape[self.mask.axis])

    @property
    def inner(self) -> list[int]:
        """The axes along which the number is the same."""
        return [d for d in range(len(self.shape)) if d not in self.mask.rows]

    @property
    def axis(self) -> int:
        """Which of them is that of the mask."""
        return self.inner.index(self.mask.axis)

    @property
    def window(self) -> tuple[int, ...]:
        return tuple(1 if d == self.mask.axis else self.shape[d] for d in self.inner)

    def sizes(self, op: Op) -> tuple[int, int, int]:
        """How many rows there are, and bytes: of one of them, and of the array of an op."""
        count, dtype = prod(self.shape[d] for d in self.mask.rows), op.result.dtype
        return count, dtypes.nbytes(self.window, dtype), dtypes.nbytes(self.shape, dtype)

    def each(
        self, fun: Callable[..., jax.Array], number: jax.Array, arrays: Sequence[jax.Array]
    ) -> jax.Array:
        """A function of a place and of arrays, for all numbers."""
        rows = sorted(self.mask.rows)
        arrays = [lax.broadcast_in_dim(a, self.shape, range(a.ndim)) for a in arrays]
        for passed, axis in reversed([*enumerate(rows)]):  # the axes outside are gone by then
            at = axis - passed
            fun = jax.vmap(fun, in_axes=(0, *[at] * len(arrays)), out_axes=at)
        place = self._place(number)
        return fun(lax.transpose(place, [self.mask.rows.index(d) for d in rows]), *arrays)

    def _place(self, number: jax.Array) -> jax.Array:
        """Where the mask is true, in a type that can say where it never is.  JAX's transpose of a
        scatter takes the lower 32 bits of a longer index.
        """
        dtype, first = number.dtype, self.mask.offset
        is_long = dtypes.bits(dtype) > dtypes.bits(np.dtype(np.int32)) and not self.are_known
        if is_long:
            least = max(first - 1, dtypes.limits(dtype)[0])
            end = dtypes.wrapped(dtype, first + self.shape[self.mask.axis])
            number = lax.clamp(dtypes.wrapped(dtype, least), number, end)
        if is_long or dtypes.bits(dtype) < dtypes.bits(np.dtype(np.int32)):
            number = lax.convert_element_type(number, np.int32)
        return lax.sub(number, dtypes.wrapped(number.dtype, first)) if first else number

    def of(self, array: Any, place: jax.Array, dtype: Any) -> jax.Array:
        """The row of an array, the nearest where there is none, or one of a number."""
        if not isinstance(array, jax.Array):
            return lax.full(self.window, array, dtype)
        return read_window(array, self._starts(place), self.window)

    def among(self, number: Any, row: jax.Array, place: jax.Array) -> jax.Array:
        """The row, or one of numbers where there is none."""
        if self.are_known:
            return row
        end = dtypes.wrapped(place.dtype, self.shape[self.mask.axis])
        is_there = lax.bitwise_and(lax.ge(place, lax.full_like(place, 0)), lax.lt(place, end))
        return lax.select(lax.broadcast(is_there, row.shape), row, lax.full_like(row, number))

    def put(self, array: jax.Array, row: jax.Array, place: jax.Array) -> jax.Array:
        """The array with a row that is there."""
        return write_window(array, row, self._starts(place))

    def scattered(self, scatter: Any, array: jax.Array, row: jax.Array, place: jax.Array) -> Any:
        """The array with a row written or added to, if it is there."""
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(len(self.window) - 1)),
            inserted_window_dims=(self.axis,),
            scatter_dims_to_operand_dims=(self.axis,),
        )
        index, update = lax.reshape(place, (1,)), lax.squeeze(row, (self.axis,))
        hints = {"indices_are_sorted": True, "unique_indices": True}
        mode = IN_BOUNDS if self.are_known else DROP
        return scatter(array, index, update, numbers, mode=mode, **hints)

    def _starts(self, place: jax.Array) -> list[Any]:
        return [place if d == self.axis else 0 for d in range(len(self.window))]


def read(rows: OneHotRows, row: Chosen, op: Op, rw: Rewriter) -> Value:
    """The result of a reduction of an array that is its neutral element but for a row."""
    dtype, shape = op.operands[0].dtype, op.result.shape

    def fun(number: jax.Array, *arrays: jax.Array) -> jax.Array:
        def one(place: jax.Array, *arrays: jax.Array) -> jax.Array:
            here = rows.of(arrays[0] if arrays else row.here, place, dtype)
            return rows.among(row.elsewhere, here, place)

        return lax.reshape(rows.each(one, number, arrays), shape)

    arrays = [row.here] if isinstance(row.here, Value) else []
    return rw.typed(fun, op.result.aval, rows.mask.number, *arrays, before=op)


def written(rows: OneHotRows, kept: Value, here: Any, op: Op, rw: Rewriter) -> Value:
    """An array with the row of another array, or of numbers, that an op takes or combines with it
    there.
    """

    def fun(number: jax.Array, *arrays: jax.Array) -> jax.Array:
        def one(place: jax.Array, kept: jax.Array, *new: jax.Array) -> jax.Array:
            row = rows.of(new[0] if new else here, place, kept.dtype)
            return _written(rows, op, kept, row, place)

        return rows.each(one, number, arrays)

    arrays = [kept, here] if isinstance(here, Value) else [kept]
    return rw.typed(fun, op.result.aval, rows.mask.number, *arrays, before=op)


def _written(
    rows: OneHotRows, op: Op, kept: jax.Array, row: jax.Array, place: jax.Array
) -> jax.Array:
    if op.name in ("add", "add_any", "sub"):
        addend = lax.neg(row) if op.name == "sub" else row
        added: jax.Array = rows.scattered(lax.scatter_add, kept, addend, place)
        return added
    if op.name != "select_n":
        assert op.primitive is not None
        row = op.primitive.bind(rows.of(kept, place, kept.dtype), row, **op.params)
    if rows.are_known:
        return rows.put(kept, row, place)
    there: jax.Array = rows.scattered(lax.scatter, kept, row, place)
    return there
