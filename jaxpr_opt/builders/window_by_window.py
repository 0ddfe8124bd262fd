"""A scatter of several windows as a loop that writes one after the other, as XLA:CPU does."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import jax
from jax import lax

from jaxpr_opt.bridge.parameters import alike_in_both, numbers_of, unique
from jaxpr_opt.ir.graph import Op


def one_by_one(scatter: Op) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
    """The function of its operands that writes or combines its windows in order."""
    numbers, (_, index, update) = numbers_of(scatter), scatter.operands
    lead, batched = index.shape[:-1], numbers.operand_batching_dims
    along = [prod(lead[axis + 1 :]) for axis in numbers.scatter_indices_batching_dims]
    sizes = [lead[axis] for axis in numbers.scatter_indices_batching_dims]
    axes = [axis for axis in range(len(update.shape)) if axis not in numbers.update_window_dims]
    window = tuple(update.shape[axis] for axis in numbers.update_window_dims)
    there = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(len(window))),
        inserted_window_dims=tuple(sorted((*numbers.inserted_window_dims, *batched))),
        scatter_dims_to_operand_dims=(*numbers.scatter_dims_to_operand_dims, *batched),
    )
    write: Callable[..., jax.Array] = getattr(lax, scatter.name.replace("-", "_"))

    def write_all(array: jax.Array, index: jax.Array, update: jax.Array) -> jax.Array:
        places = lax.reshape(index, (prod(lead), index.shape[-1]))
        moved = lax.transpose(update, (*axes, *numbers.update_window_dims))
        windows = lax.reshape(moved, (prod(lead), *window))

        def write_one(step: jax.Array, array: jax.Array) -> jax.Array:
            number = lax.convert_element_type(step, index.dtype)
            rows = [
                lax.rem(lax.div(number, lax.full_like(number, each)), lax.full_like(number, size))
                for each, size in zip(along, sizes, strict=True)
            ]
            rows = [lax.reshape(row, (1,)) for row in rows]
            place = lax.concatenate([places[step], *rows], 0)
            return write(array, place, windows[step], there, **alike_in_both(scatter))

        result: jax.Array = lax.fori_loop(0, prod(lead), write_one, array)
        return result

    return write_all


def apart(scatter: Op) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
    """The function of its operands that adds its one window, which XLA joins with no other's."""

    def add(array: jax.Array, index: jax.Array, update: jax.Array) -> jax.Array:
        assert scatter.primitive is not None
        added: jax.Array = scatter.primitive.bind(array, index, update, **unique(scatter))
        return added

    return add
