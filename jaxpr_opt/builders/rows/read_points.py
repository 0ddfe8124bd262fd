"""Elements that are read at several places, each computed from what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
from jax import lax

from jaxpr_opt.analysis.rows.read_rows import ReadRows
from jaxpr_opt.bridge.parameters import (
    fill_value_of,
    fills,
    mode_of,
    numbers_of,
    slice_sizes_of,
)
from jaxpr_opt.bridge.slicing import places_in_range
from jaxpr_opt.builders.rows.points import Places, evaluate_at
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def compute_points(found: ReadRows, rw: Rewriter) -> Value:
    """What is read; the ops that computed all elements are then read by each other only."""
    op, factors = found.selection.op, list(found.factors)
    code = partial(_elements, found, factors)
    return rw.typed(code, op.result.aval, *found.selection.indices, *factors, before=op)


def _elements(
    found: ReadRows, factors: Sequence[Value], index: jax.Array, *arrays: jax.Array
) -> jax.Array:
    selection, given = found.selection, dict(zip(factors, arrays, strict=True))
    gather, array, lead = selection.op, selection.array, index.shape[:-1]
    numbers = numbers_of(gather)
    batches = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    near, inside = places_in_range(index, numbers.start_index_map, batches, array.shape)
    places = {axis: lax.reshape(at, (selection.points,)) for axis, at in near.items()}
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [n for axis, n in enumerate(slice_sizes_of(gather)) if axis not in gone]

    def element(at: Places) -> jax.Array:
        made = evaluate_at(at, found, found.ops, found.needed, given, {})
        return lax.reshape(made[array], kept)

    read = lax.reshape(jax.vmap(element)(places), (*lead, *kept))
    window = tuple(numbers.offset_dims)
    to = [*(axis for axis in range(read.ndim) if axis not in window), *window]
    read = lax.transpose(read, [to.index(axis) for axis in range(read.ndim)])
    if mode_of(gather) == lax.GatherScatterMode.CLIP:
        return read
    there = lax.broadcast_in_dim(inside, read.shape, to[: len(lead)])
    return lax.select(there, read, _out_of_range(gather, read))


def _out_of_range(gather: Op, read: jax.Array) -> jax.Array:
    """What a gather gives for places out of range: a number; or, if it was promised that there are
    none, what XLA reads, whose gradient is zero.
    """
    if fills(gather):
        return lax.full_like(read, fill_value_of(gather))
    return lax.stop_gradient(read)
