"""One matrix for all rows of a batch, instead of a copy for each, and one gradient of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.windows.summed_products import Mask, SummedProduct
from jaxpr_opt.bridge.parameters import (
    along_other_axes,
    broadcast_dimensions_of,
    numbers_of,
)
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def one_row(array: Value, axes: Sequence[int], rw: Rewriter, *, before: Op) -> Value:
    """What an array is that is the same along some axes, without these axes."""
    kept = [axis for axis in range(len(array.shape)) if axis not in axes]
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
        tuple(tuple(_without([axis], of)) for axis, of in zip(axes, pair, strict=True))
        for pair in (contracted, left)
    )
    code = partial(bound, product, params=along_other_axes(product, numbers))
    ins = [None if at == position else axis for at, axis in enumerate(axes)]
    operands = list(product.operands)
    operands[position] = one_row(operands[position], [axes[position]], rw, before=product)
    batched = jax.vmap(code, in_axes=ins, out_axes=number)
    return rw.typed(batched, product.result.aval, *operands, before=product)


def product_of_sum(found: SummedProduct, rw: Rewriter) -> Value:
    """The product that also sums up along batch axes, of rows that are chosen."""
    product, before = found.product, found.ops[0]
    contracted, batch = numbers_of(product)
    rest = [n for n in range(len(batch[0])) if n not in found.summed]
    numbers = (
        tuple(
            (*axes, *(of[n] for n in found.summed))
            for axes, of in zip(contracted, batch, strict=True)
        ),
        tuple(tuple(of[n] for n in rest) for of in batch),
    )
    masks = [_rows(mask, len(batch[0]), rw, before) for mask in found.masks]
    code = partial(bound, product, params=along_other_axes(product, numbers))
    order = [sorted(found.kept).index(axis) for axis in found.kept]

    def multiply(*given: jax.Array) -> jax.Array:
        factors, rows = given[:2], given[2:]
        for (_, axes, zeros), mask in zip(masks, rows, strict=True):
            factors = [
                _chosen(factor, mask, [of[n] for n in axes], zeros=zeros)
                for factor, of in zip(factors, batch, strict=True)
            ]
        return lax.transpose(code(*factors), order)

    values = (*product.operands, *(mask for mask, _, _ in masks))
    return rw.typed(multiply, before.result.aval, *values, before=before)


def _rows(mask: Mask, batch: int, rw: Rewriter, before: Op) -> tuple[Value, list[int], bool]:
    """A predicate of rows, the batch axes it is along, and for which truth value rows are zero."""
    in_rows = [axis for axis, to in enumerate(mask.axes) if to >= batch]
    of_rows = [to for to in mask.axes if to < batch]
    return one_row(mask.predicate, in_rows, rw, before=before), of_rows, mask.zeros


def _chosen(factor: Any, mask: Any, axes: Sequence[int], *, zeros: bool) -> Any:
    """Rows of a factor, or zeros."""
    order = sorted(range(len(axes)), key=axes.__getitem__)
    where = lax.broadcast_in_dim(lax.transpose(mask, order), factor.shape, sorted(axes))
    zero = jnp.zeros_like(factor)
    return lax.select(where, zero, factor) if zeros else lax.select(where, factor, zero)


def _without(gone: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Axes of an array that has lost some."""
    return [axis - sum(each < axis for each in gone) for axis in axes]
