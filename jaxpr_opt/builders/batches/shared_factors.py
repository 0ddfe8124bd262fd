"""One matrix for all rows of a batch, instead of a copy for each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax import lax

from jaxpr_opt.bridge.parameters import (
    along_other_axes,
    broadcast_dimensions_of,
    numbers_of,
    swapped,
)
from jaxpr_opt.builders.batches.shared_tables import renumbered
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.builders.swapped_factors import back_in_order
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def one_row(array: Value, kept: Sequence[int], rw: Rewriter, *, before: Op) -> Value:
    """What an array is that is the same along all axes but some, along these axes."""
    while (op := array.op) is not None and op.name == "broadcast_in_dim":
        (source,), to = op.operands, list(broadcast_dimensions_of(op))
        if not all(a in to and source.shape[to.index(a)] == array.shape[a] for a in kept):
            break
        kept, array = [to.index(axis) for axis in kept], source
    if len(kept) == len(array.shape):
        return array

    def first(x: jax.Array) -> jax.Array:
        limits = [n if axis in kept else 1 for axis, n in enumerate(x.shape)]
        return lax.squeeze(
            lax.slice(x, [0] * x.ndim, limits), [a for a in range(x.ndim) if a not in kept]
        )

    return rw.insert(first, array, before=before)


def product_of_shared(product: Op, position: int, number: int, rw: Rewriter) -> Value:
    """The product by one row of a factor that is the same along a batch axis, of that number."""
    contracted, batch = numbers_of(product)
    axes = [int(of_factor[number]) for of_factor in batch]
    left = [[place for at, place in enumerate(of_factor) if at != number] for of_factor in batch]
    numbers = tuple(
        tuple(renumbered([axis], of) for axis, of in zip(axes, pair, strict=True))
        for pair in (contracted, left)
    )
    params = along_other_axes(product, numbers)
    ins = [None if at == position else axis for at, axis in enumerate(axes)]
    operands = list(product.operands)
    factor = operands[position]
    kept = [axis for axis in range(len(factor.shape)) if axis != axes[position]]
    operands[position] = one_row(factor, kept, rw, before=product)
    by_rows = partial(bound, product, params=params)
    if position == 0:
        # A factor with a batch comes out batch by batch only where it is the first.
        ins, operands = ins[::-1], operands[::-1]
        free = len(operands[1].shape) - len(contracted[0]) - len(left[0])
        by_rows = partial(_turned, product, swapped(params), len(left[0]), free)
    batched = jax.vmap(by_rows, in_axes=ins, out_axes=number)
    return rw.typed(batched, product.result.aval, *operands, before=product)


def _turned(product: Op, params: dict[str, Any], batch: int, free: int, *factors: Any) -> Any:
    """A product of factors that have changed places, with its axes as they were."""
    made = bound(product, *factors, params=params)
    return lax.transpose(made, back_in_order(made.ndim, batch, free))
