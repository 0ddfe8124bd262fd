"""The rows of a table that a product with a one-hot array picks."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.windows.one_hot import OneHotRow
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import numbers_of
from jaxpr_opt.builders.residual_transfer import streamed
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def places(hot: OneHotRow, rw: Rewriter) -> Value:
    """Where an array is one, in the step that reads it."""
    if hot.loop is None:
        return hot.number
    moved = rw.insert(lambda n: jnp.moveaxis(n, hot.along, 0), hot.number, before=hot.loop)
    return streamed(moved, hot.loop, rw)


def rows_of_product(
    op: Op, hot: OneHotRow, side: int, table: jax.Array, number: jax.Array
) -> jax.Array:
    """The rows that a product picks of a table, zeros where there is none, if operand `side` is
    one-hot.
    """
    contracted, _ = numbers_of(op)
    (summed,), (axis,) = contracted[side], contracted[1 - side]
    shape, others = op.operands[side].shape, table.ndim - 1
    free = [d for d in range(len(shape)) if d != summed]
    number = lax.transpose(number, [hot.rows.index(d) for d in free if d in hot.rows])
    if hot.offset:
        number = lax.sub(number, dtypes.wrapped(number.dtype, hot.offset))
    if dtypes.bits(number.dtype) < dtypes.bits(np.dtype(np.int32)):
        number = lax.convert_element_type(number, np.int32)
    first = 0 if side else len(free)
    numbers = lax.GatherDimensionNumbers(tuple(range(first, first + others)), (axis,), (axis,))
    return lax.gather(
        table,
        lax.reshape(number, (*(shape[d] for d in free), 1)),
        numbers,
        [1 if d == axis else n for d, n in enumerate(table.shape)],
        mode=lax.GatherScatterMode.FILL_OR_DROP,
        fill_value=0,
    )


def not_finite(axis: int, table: jax.Array) -> jax.Array:
    """How many numbers along an axis are not finite, some rows at a time: XLA stores what it
    reduces.
    """
    shape, rows = table.shape[:axis] + table.shape[axis + 1 :], table.shape[axis]
    most = max(limits.NUMBERS_LOOKED_AT // prod(shape), 1)
    block = max(n for n in range(1, most + 1) if rows % n == 0)

    def counted(some: jax.Array) -> jax.Array:
        return jnp.sum(~lax.is_finite(some), axis, dtype=np.int32)

    def add(i: jax.Array, count: jax.Array) -> jax.Array:
        return count + counted(lax.dynamic_slice_in_dim(table, i * block, block, axis))

    if block == rows:
        return counted(table)
    count: jax.Array = lax.fori_loop(0, rows // block, add, jnp.zeros(shape, np.int32))
    return count


def or_nan(first: int, row: jax.Array, count: jax.Array) -> jax.Array:
    """The rows, or NaN where another row has a number that is not finite; from which axis on they
    are rows.
    """
    count = lax.broadcast_in_dim(count, row.shape, range(first, first + count.ndim))
    others = count - ~lax.is_finite(row)
    return jnp.where(others > 0, jnp.asarray(np.nan, row.dtype), row)
