"""Compute functions of elements that are added to zeros from what each of them contributes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.rows.added_points import AddedPoints
from jaxpr_opt.bridge.parameters import mode_of, numbers_of, of_shape
from jaxpr_opt.bridge.slicing import in_range
from jaxpr_opt.builders.rows.read_rows import element_of
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def compute_points(found: AddedPoints, rw: Rewriter) -> None:
    """Replace all that is made of the array, and read as a whole."""
    link = found.link
    for value in found.dense:
        leading = backward_slice([value], lambda v: v.op not in found.ops)
        ops = [op for op in found.ops if op in leading]
        factors = dict.fromkeys(v for op in ops for v in op.operands if v not in found.axes)
        code = partial(_contributions, found, value, ops, list(factors))
        assert value.op is not None
        operands = link.indices[0], link.update, *factors
        dense = rw.typed(code, value.aval, *operands, before=value.op)
        rw.replace(value, dense, lambda use: use.op not in found.ops)
    for op in reversed(found.ops):
        rw.erase(op)


def _contributions(
    found: AddedPoints,
    value: Value,
    ops: Sequence[Op],
    factors: Sequence[Value],
    index: jax.Array,
    update: jax.Array,
    *arrays: jax.Array,
) -> jax.Array:
    """A value that is made of the array: the sum of what each element contributes."""
    array, given = found.array, dict(zip(factors, arrays, strict=True))
    flat, places = _places(found, index)
    numbers = numbers_of(found.link.op)
    kept = numbers.update_window_dims
    lead = [axis for axis in range(update.ndim) if axis not in kept]
    of_one = found.shape(array, found.axes[array])
    added = lax.reshape(lax.transpose(update, [*lead, *kept]), (found.points, *of_one))
    if mode_of(found.link.op) != lax.GatherScatterMode.CLIP:
        inside = (lax.eq(at, places[axis].astype(at.dtype)) for axis, at in flat.items())
        there = lax.broadcast_in_dim(reduce(lax.bitwise_and, inside), added.shape, (0,))
        added = lax.select(there, added, lax.full_like(added, 0))

    def contribution(at: dict[int, jax.Array], row: jax.Array) -> jax.Array:
        made = {array: row}
        for op in ops:
            operands = [
                made[v] if v in made else element_of(given[v], part, found.shape(v, part), at)
                for v, part in zip(op.operands, found.ops[op], strict=True)
            ]
            params = of_shape(op, found.shape(op.result, found.axes[op.result]))
            made[op.result] = bound(op, *operands, params=params)
        return made[value]

    return _added(found, value, jax.vmap(contribution)(places, added), places)


def _places(
    found: AddedPoints, index: jax.Array
) -> tuple[dict[int, jax.Array], dict[int, jax.Array]]:
    """The places along each axis, and the nearest in range."""
    numbers, shape, lead = numbers_of(found.link.op), found.array.shape, index.shape[:-1]
    columns = {axis: index[..., c] for c, axis in enumerate(numbers.scatter_dims_to_operand_dims)}
    batches = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    for axis, of_index in batches:
        columns[axis] = lax.broadcasted_iota(np.int32, lead, of_index)
    flat = {axis: lax.reshape(at, (found.points,)) for axis, at in columns.items()}
    return flat, {axis: in_range(at, shape[axis] - 1) for axis, at in flat.items()}


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
