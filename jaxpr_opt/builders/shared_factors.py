"""One matrix for all rows of a batch, instead of a copy for each, and one gradient of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.windows.summed_products import Mask, SumOfTerms, Term
from jaxpr_opt.bridge.parameters import (
    along_other_axes,
    axes_of,
    broadcast_dimensions_of,
    numbers_of,
    of_single_rows,
    swapped,
)
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.builders.shared_tables import renumbered
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
    if position == 0 and len(operands[1].shape) == len(contracted[1]) + len(batch[1]):
        # Vectors times a matrix come out batch by batch, a matrix times vectors does not.
        params, ins, operands = swapped(params), ins[::-1], operands[::-1]
    batched = jax.vmap(partial(bound, product, params=params), in_axes=ins, out_axes=number)
    return rw.typed(batched, product.result.aval, *operands, before=product)


def sum_of_products(found: SumOfTerms, rw: Rewriter) -> Value:
    """What the sum of terms is, products summed up by a product, of rows that are chosen."""
    reduction, total = found.ops[0], None
    for term in found.terms:
        make = _product if term.product else _sum
        masks = [one_row(m.predicate, m.kept, rw, before=reduction) for m in term.masks]
        operands = term.product.operands if term.product else (term.array,)

        def code(*given: jax.Array, term: Term = term, make: Any = make) -> jax.Array:
            count = len(given) - len(term.masks)
            summed = make(term, reduction.result.dtype, given[:count], given[count:])
            return _as_added(term, summed, reduction)

        made = rw.typed(code, reduction.result.aval, *operands, *masks, before=reduction)
        total = made if total is None else rw.insert(lax.add, total, made, before=reduction)
    assert total is not None
    return total


def _product(
    term: Term, dtype: Any, factors: Sequence[jax.Array], masks: Sequence[jax.Array]
) -> jax.Array:
    """The product that also sums up along batch axes, of rows that are chosen."""
    product = term.product
    assert product is not None
    contracted, batch = numbers_of(product)
    rest = [n for n in range(len(batch[0])) if n not in term.summed]
    summing = [
        (*axes, *(of[n] for n in term.summed)) for axes, of in zip(contracted, batch, strict=True)
    ]
    numbers = tuple(summing), tuple(tuple(of[n] for n in rest) for of in batch)
    chosen = [
        _chosen(factor, term.masks, masks, [[of[a] for a in m.axes] for m in term.masks])
        for factor, of in zip(factors, batch, strict=True)
    ]
    widened = {} if dtype == term.array.dtype else {"preferred_element_type": np.dtype(dtype)}
    params = {**along_other_axes(product, numbers), **widened}
    made: jax.Array = bound(product, *chosen, params=params)
    return made


def _sum(
    term: Term, dtype: Any, given: Sequence[jax.Array], masks: Sequence[jax.Array]
) -> jax.Array:
    """The sum of rows that are chosen."""
    chosen = _chosen(given[0], term.masks, masks, [m.axes for m in term.masks])
    return lax.reduce_sum(lax.convert_element_type(chosen, dtype), axes=term.summed)


def _as_added(term: Term, summed: jax.Array, reduction: Op) -> jax.Array:
    """A term that is summed up, moved as its rows were; meanwhile summed axes have one row."""
    made = lax.expand_dims(summed, term.summed)
    for op, axes in reversed(term.moves):
        others = op.operands[1:]  # the filler of a pad, zero
        fillers = [jnp.zeros(v.shape, made.dtype) for v in others]
        made = bound(op, made, *fillers, params=of_single_rows(op, axes))
    return lax.squeeze(made, axes_of(reduction))


def _chosen(
    array: jax.Array,
    masks: Sequence[Mask],
    predicates: Sequence[jax.Array],
    axes: Sequence[Sequence[int]],
) -> jax.Array:
    """Rows of an array for which all predicates are the case of their mask, and zeros."""
    for mask, predicate, along in zip(masks, predicates, axes, strict=True):
        order = sorted(range(len(along)), key=along.__getitem__)
        chosen = predicate if predicate.dtype == bool else _is_case(mask, predicate)
        where = lax.broadcast_in_dim(lax.transpose(chosen, order), array.shape, sorted(along))
        zero = jnp.zeros_like(array)
        is_true = predicate.dtype != bool or mask.case == 1
        array = lax.select(where, array, zero) if is_true else lax.select(where, zero, array)
    return array


def _is_case(mask: Mask, number: jax.Array) -> jax.Array:
    """Where a number chooses the case of a mask: one that is out of range, the case next to it."""
    if mask.case == 0:
        return number <= 0
    return number >= mask.case if mask.case == mask.cases - 1 else number == mask.case
