"""Products by the parts of a factor, each of rows that differ only, or of what is summed up."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax import lax

from jaxpr_opt.analysis.batches.repeated_parts import JoinedPart, RepeatedParts
from jaxpr_opt.analysis.batches.summed_parts import ReadPart, SummedParts
from jaxpr_opt.analysis.rows.row_axes import axis_of_operand, row_axis
from jaxpr_opt.bridge.parameters import along_other_axes, numbers_of
from jaxpr_opt.builders.batches.shared_tables import renumbered, without
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.ir.graph import Value
from jaxpr_opt.ir.rewriter import Rewriter


def product_of_parts(found: RepeatedParts, rw: Rewriter) -> Value:
    """The sum of the products by each group of parts, or what is joined of them."""
    product = found.product
    made = [_product(found, parts, rw) for parts in found.groups]
    if not found.is_summed and len(made) > 1:
        along = row_axis(product, found.position, found.axis)
        assert along is not None
        return rw.insert(lambda *x: lax.concatenate(x, along), *made, before=product)
    total, *others = made
    for each in others:
        total = rw.insert(lax.add, total, each, before=product)
    return total


def _product(found: RepeatedParts, parts: Sequence[JoinedPart], rw: Rewriter) -> Value:
    """The product by parts that are the same along the same axes, of one row along each."""
    product, position, gone = found.product, found.position, parts[0].repeated
    contracted, batch = numbers_of(product)
    partners = dict(zip(contracted[position], contracted[1 - position], strict=True))
    summed = [partners[axis] for axis in gone if axis in partners]
    left = [axis for axis in partners if axis not in gone]

    def numbers(mine: Sequence[int], others: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        pair = renumbered(gone, mine), renumbered(summed, others)
        return pair if position == 0 else pair[::-1]

    multiplied = numbers(left, [partners[axis] for axis in left])
    params = along_other_axes(product, (multiplied, numbers(batch[position], batch[1 - position])))
    made_axes = [row_axis(product, position, axis) for axis in gone if axis not in partners]
    shape = list(product.result.shape)
    if not found.is_summed:
        along = row_axis(product, position, found.axis)
        assert along is not None
        shape[along] = sum(part.size for part in parts)
    kept = [axis for axis in range(len(shape)) if axis not in made_axes]
    (joined,) = renumbered(gone, [found.axis])

    def code(other: jax.Array, *arrays: jax.Array) -> jax.Array:
        rows = [
            lax.reshape(x, without(part.shape, gone)) for x, part in zip(arrays, parts, strict=True)
        ]
        factor = lax.concatenate(rows, joined) if len(rows) > 1 else rows[0]
        if found.is_summed:
            other = _at_parts(other, partners[found.axis], parts)
        other = lax.reduce_sum(other, axes=tuple(summed)) if summed else other
        pair = (factor, other) if position == 0 else (other, factor)
        made: jax.Array = bound(product, *pair, params=params)
        return lax.broadcast_in_dim(made, shape, kept) if made_axes else made

    operands = [product.operands[1 - position], *(part.array for part in parts)]
    return rw.typed(code, product.result.aval, *operands, before=product)


def _at_parts(other: jax.Array, axis: int, parts: Sequence[JoinedPart]) -> jax.Array:
    """The parts of the other factor, joined."""
    found: list[list[int]] = []
    for part in parts:
        if found and found[-1][1] == part.start:
            found[-1][1] += part.size
        else:
            found.append([part.start, part.start + part.size])
    slices = [lax.slice_in_dim(other, start, end, axis=axis) for start, end in found]
    return lax.concatenate(slices, axis) if len(slices) > 1 else slices[0]


def multiply_sums(found: SummedParts, rw: Rewriter) -> None:
    """Make each part of a product by itself, of rows that are summed up first."""
    for part in found.parts:
        reader = part.array.op
        assert reader is not None
        rw.replace(part.array, _product_of_sums(found, part, rw))
        rw.erase_unread(reader)


def _product_of_sums(found: SummedParts, part: ReadPart, rw: Rewriter) -> Value:
    product, position = found.product, found.position
    summed = [axis_of_operand(product, position, axis) for axis in part.summed]
    gone = [axis for axis in summed if axis is not None]
    pairs = [
        [renumbered(gone, of) if at == position else tuple(of) for at, of in enumerate(pair)]
        for pair in numbers_of(product)
    ]
    params = along_other_axes(product, tuple(map(tuple, pairs)))
    end = part.start + part.size

    def at_part(factor: jax.Array, at: int) -> jax.Array:
        axis = axis_of_operand(product, at, found.axis)
        if axis is not None and part.size < factor.shape[axis]:
            factor = lax.slice_in_dim(factor, part.start, end, axis=axis)
        return lax.reduce_sum(factor, axes=tuple(gone)) if at == position and gone else factor

    def code(*factors: jax.Array) -> jax.Array:
        made = bound(product, *map(at_part, factors, range(2)), params=params)
        return lax.reshape(made, part.array.shape)

    return rw.typed(code, part.array.aval, *product.operands, before=product)
