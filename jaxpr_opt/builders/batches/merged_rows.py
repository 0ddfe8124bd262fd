"""Products along the axes of which one is merged."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from jaxpr_opt.analysis.batches.merged_rows import MergedRows
from jaxpr_opt.bridge.parameters import along_other_axes, numbers_of
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def multiply_apart(found: MergedRows, rw: Rewriter) -> Value:
    """The same product, made along the axes that are merged, in its own shape."""
    split = [found.partner, found.partner]
    split[found.position] = found.axis
    return multiply_split(found.product, split, found.sizes, rw)


def multiply_split(
    product: Op, split: Sequence[int | None], sizes: Sequence[int], rw: Rewriter
) -> Value:
    """The same product of factors of which axes are split into axes of such sizes."""
    pairs = [
        tuple(_axes(of, at, len(sizes)) for of, at in zip(pair, split, strict=True))
        for pair in numbers_of(product)
    ]
    params = along_other_axes(product, tuple(pairs))

    def code(*factors: jax.Array) -> jax.Array:
        apart = [_split(x, at, sizes) for x, at in zip(factors, split, strict=True)]
        return lax.reshape(bound(product, *apart, params=params), product.result.shape)

    return rw.typed(code, product.result.aval, *product.operands, before=product)


def _axes(of: Sequence[int], at: int | None, count: int) -> tuple[int, ...]:
    """Axes of an array of which one is split."""
    if at is None:
        return tuple(of)
    found: list[int] = []
    for axis in of:
        first = axis + (count - 1) * (axis > at)
        found += range(first, first + (count if axis == at else 1))
    return tuple(found)


def _split(array: jax.Array, axis: int | None, sizes: Sequence[int]) -> jax.Array:
    if axis is None:
        return array
    return lax.reshape(array, (*array.shape[:axis], *sizes, *array.shape[axis + 1 :]))
