"""Compute functions of elements that are added to zeros from what each of them contributes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
from jax import lax

from jaxpr_opt.analysis.rows.added_points import AddedPoints, points_of
from jaxpr_opt.analysis.sparse.scatter_chains import Piece
from jaxpr_opt.bridge.parameters import mode_of, numbers_of
from jaxpr_opt.bridge.slicing import places_in_range
from jaxpr_opt.builders.rows.points import Places, evaluate_at
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def compute_points(found: AddedPoints, rw: Rewriter) -> None:
    """Replace all that is made of the array, and read as a whole."""
    added = [value for link in found.links for value in (link.indices[0], link.update)]
    for value in found.dense:
        leading = backward_slice([value], lambda v: v.op not in found.ops)
        ops = [op for op in found.ops if op in leading]
        factors = list(dict.fromkeys(v for op in ops for v in op.operands if v not in found.axes))
        code = partial(_contributions, found, value, ops, factors)
        assert value.op is not None
        dense = rw.typed(code, value.aval, *added, *factors, before=value.op)
        rw.replace(value, dense, lambda use: use.op not in found.ops)
    for op in reversed(found.ops):
        rw.erase(op)


def _contributions(
    found: AddedPoints,
    value: Value,
    ops: Sequence[Op],
    factors: Sequence[Value],
    *arrays: jax.Array,
) -> jax.Array:
    """A value that is made of the array: the sum of what each element contributes."""
    count = 2 * len(found.links)
    given = dict(zip(factors, arrays[count:], strict=True))
    pairs = zip(found.links, arrays[:count:2], arrays[1:count:2], strict=True)
    each = [_elements(found, link, index, update) for link, index, update in pairs]
    added = lax.concatenate([rows for rows, _ in each], 0)
    places = {
        axis: lax.concatenate([at[axis] for _, at in each], 0) for axis in found.axes[found.array]
    }

    def contribution(at: Places, row: jax.Array) -> jax.Array:
        return evaluate_at(at, found, ops, found.axes, given, {found.array: row})[value]

    return _added(found, value, jax.vmap(contribution)(places, added), places)


def _elements(
    found: AddedPoints, link: Piece, index: jax.Array, update: jax.Array
) -> tuple[jax.Array, dict[int, jax.Array]]:
    """The elements that a scatter adds, zeros for those that it drops; and their places in range,
    along each axis.
    """
    array, numbers, points = found.array, numbers_of(link.op), points_of(link)
    batches = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    axes = numbers.scatter_dims_to_operand_dims
    at, inside = places_in_range(index, axes, batches, array.shape)
    places = {axis: lax.reshape(each, (points,)) for axis, each in at.items()}
    kept = numbers.update_window_dims
    order = [*(axis for axis in range(update.ndim) if axis not in kept), *kept]
    of_one = found.shape(array, found.axes[array])
    added = lax.reshape(lax.transpose(update, order), (points, *of_one))
    if mode_of(link.op) != lax.GatherScatterMode.CLIP:
        there = lax.broadcast_in_dim(lax.reshape(inside, (points,)), added.shape, (0,))
        added = lax.select(there, added, lax.full_like(added, 0))
    return added, places


def _added(
    found: AddedPoints, value: Value, rows: jax.Array, places: dict[int, jax.Array]
) -> jax.Array:
    """Zeros to which each contribution is added at its place."""
    part = found.axes[value]
    if not part:
        return lax.reduce_sum(rows, (0,))
    axes = sorted(part)
    index = lax.concatenate([lax.expand_dims(places[part[axis]], (1,)) for axis in axes], 1)
    kept = [n for axis, n in enumerate(value.shape) if axis not in part]
    numbers = lax.ScatterDimensionNumbers(tuple(range(1, len(kept) + 1)), (*axes,), (*axes,))
    rows = lax.reshape(rows, (found.points, *kept))
    zeros = lax.full(value.shape, 0, rows.dtype)
    return lax.scatter_add(zeros, index, rows, numbers, mode=lax.GatherScatterMode.CLIP)
