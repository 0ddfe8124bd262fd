"""The sum over a batch of what its rows share the gradient of: one product, one scatter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.batches.batch_sums import Mask, SumOfTerms, Term
from jaxpr_opt.bridge.parameters import along_other_axes, axes_of, numbers_of, of_single_rows
from jaxpr_opt.builders.batches.shared_factors import one_row
from jaxpr_opt.builders.batches.shared_kernels import group_axes, split, sum_of_groups
from jaxpr_opt.builders.batches.shared_tables import add_to_one, update_axes
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def make_sum(found: SumOfTerms, rw: Rewriter, known: Mapping[Term, Value] | None = None) -> Value:
    """What the sum of terms is, each summed up by what makes it, of rows that are chosen; the sums
    of some terms may be known.
    """
    reduction, sums = found.ops[0], known or {}
    aval, total = reduction.result.aval, list[Value]()
    for term in sorted(found.terms, key=_is_added_in_place):
        base = total if _is_added_in_place(term) else []
        summed = sums.get(term)
        if summed is None:
            masks = masks_of(term, reduction, rw)
            summed = sum_of_term(term, masks, reduction.result.dtype, reduction, rw, base)
        made = rw.typed(partial(_as_added, term, reduction), aval, summed, before=reduction)
        added = total and not base
        total = [rw.insert(lax.add, *total, made, before=reduction) if added else made]
    return total[0]


def _is_added_in_place(term: Term) -> bool:
    """Whether a scatter may add the term to the sum of others."""
    return term.source is not None and term.source.name not in _PRODUCTS and not term.moves


def masks_of(term: Term, before: Op, rw: Rewriter) -> list[Value]:
    """The predicates of a term's masks, one number for each row."""
    return [one_row(mask.predicate, mask.kept, rw, before=before) for mask in term.masks]


def sum_of_term(
    term: Term,
    masks: Sequence[Value],
    dtype: Any,
    before: Op,
    rw: Rewriter,
    base: Sequence[Value] = (),
) -> Value:
    """A term summed up, of the rows that its masks choose; a scatter may add it to something."""
    make: Any = _sum
    operands = [term.array]
    if term.source is not None and term.source.name in _PRODUCTS:
        make, operands = _PRODUCTS[term.source.name], [*term.source.operands]
    elif term.source is not None:
        make, operands = _scatter, [*term.source.operands[1:], *base]
    count = len(operands)
    code = lambda *given: make(term, dtype, given[:count], given[count:])  # noqa: E731
    return rw.insert(code, *operands, *masks, before=before)


def _product(
    term: Term, dtype: Any, factors: Sequence[jax.Array], masks: Sequence[jax.Array]
) -> jax.Array:
    """The product that also sums up along batch axes, of rows that are chosen."""
    product = term.source
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


def _convolution(
    term: Term, dtype: Any, given: Sequence[jax.Array], masks: Sequence[jax.Array]
) -> jax.Array:
    """The convolution that also sums up its outer groups, of those that are chosen."""
    convolution = term.source
    assert convolution is not None
    (axis,) = term.summed
    x, y = (
        _chosen(split(x, at, term.array.shape[axis]), term.masks, masks, [[at]] * len(masks))
        for x, at in zip(given, group_axes(convolution), strict=True)
    )
    return sum_of_groups(convolution, x, y, dtype)


def _scatter(
    term: Term, dtype: Any, given: Sequence[jax.Array], masks: Sequence[jax.Array]
) -> jax.Array:
    """The array to which all rows that are chosen are added, zeros if none is given."""
    scatter, (index, update, *base) = term.source, given
    assert scatter is not None
    along = [update_axes(scatter, mask.axes) for mask in term.masks]
    chosen = lax.convert_element_type(_chosen(update, term.masks, masks, along), dtype)
    return add_to_one(scatter, term.summed, index, chosen, *base)


def _sum(
    term: Term, dtype: Any, given: Sequence[jax.Array], masks: Sequence[jax.Array]
) -> jax.Array:
    """The sum of rows that are chosen."""
    chosen = _chosen(given[0], term.masks, masks, [m.axes for m in term.masks])
    return lax.reduce_sum(lax.convert_element_type(chosen, dtype), axes=term.summed)


def _as_added(term: Term, reduction: Op, summed: jax.Array) -> jax.Array:
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


_PRODUCTS = {"conv_general_dilated": _convolution, "dot_general": _product}
