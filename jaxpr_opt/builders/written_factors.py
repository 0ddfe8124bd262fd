"""The product of a window in zeros, as one of the window."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from jaxpr_opt.analysis.windows.row_axes import row_axis
from jaxpr_opt.bridge.parameters import numbers_of
from jaxpr_opt.bridge.slicing import read_window, write_window
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def product_of_window(product: Op, position: int, write: Op, rw: Rewriter) -> Value:
    """The product, of what a `dynamic_update_slice` writes and a window of the other factor."""
    array, window, *_ = write.operands
    other = product.operands[1 - position]
    parts = [a for a, n in enumerate(window.shape) if n != array.shape[a]]
    pairs = {a: b for axes in numbers_of(product) for a, b in _pairs(axes, position)}
    placed = {row_axis(product, position, a): a for a in parts}
    shape = product.result.shape

    def multiply(window: jax.Array, other: jax.Array, *at: jax.Array) -> jax.Array:
        starts: list[Any] = [0] * other.ndim
        sizes = list(other.shape)
        for axis in parts:
            # Condition 2 of multiply-written-rows.
            if axis in pairs:
                starts[pairs[axis]], sizes[pairs[axis]] = at[axis], window.shape[axis]
        read = other if sizes == list(other.shape) else read_window(other, starts, sizes)
        made: jax.Array = bound(product, *((window, read) if position == 0 else (read, window)))
        if made.shape == shape:
            return made
        where = [at[placed[axis]] if axis in placed else 0 for axis in range(len(shape))]
        return write_window(lax.full(shape, 0, made.dtype), made, where)

    return rw.typed(
        multiply, product.result.aval, *(window, other, *write.operands[2:]), before=product
    )


def _pairs(axes: Any, position: int) -> list[tuple[int, int]]:
    """Axes of the factor at a position, each with that of the other factor."""
    return list(zip(axes[position], axes[1 - position], strict=True))
