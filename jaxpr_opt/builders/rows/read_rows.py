"""The rows that are read, computed from parts of what all rows were computed from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.rows.read_rows import AxesOfPart, ReadRows
from jaxpr_opt.analysis.rows.selections import Selection
from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.bridge.parameters import (
    fill_value_of,
    fills,
    mode_of,
    numbers_of,
    of_shape,
    slice_sizes_of,
)
from jaxpr_opt.bridge.slicing import in_range, read_window
from jaxpr_opt.builders.same_op import bound, on_others
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def compute_rows(found: ReadRows, rw: Rewriter) -> Value:
    """What is read; the ops that computed all rows are then read by each other only."""
    if found.selection.points:
        return _at_points(found, rw)
    made: dict[tuple[Value, frozenset[tuple[int, int]]], Value] = {}

    def part_of(value: Value, part: AxesOfPart) -> Value:
        key = value, frozenset(part.items())
        if key not in made:
            made[key] = _sliced(value, part, found, rw) if part else value
        return made[key]

    for op, parts in found.ops.items():
        operands = [part_of(v, part) for v, part in zip(op.operands, parts, strict=True)]
        whole = found.needed[op.result]
        made[op.result, frozenset(whole.items())] = _computed(op, whole, operands, found, rw)
    selection = found.selection
    rows, shape = part_of(selection.array, found.needed[selection.array]), selection.op.result.shape
    return rw.reshape(rows, shape, before=selection.op) if rows.shape != shape else rows


def _sliced(value: Value, part: AxesOfPart, found: ReadRows, rw: Rewriter) -> Value:
    """A part of an array that is computed as a whole."""
    selection = found.selection
    read = _gathered if selection.op.name == "gather" else _windowed
    code = partial(read, selection, part, found.shape(value, part))
    return rw.typed(code, value.aval, value, *selection.indices, before=selection.op)


def _windowed(
    selection: Selection,
    part: AxesOfPart,
    shape: Sequence[int],
    array: jax.Array,
    *indices: jax.Array,
) -> jax.Array:
    """The part that is a slice."""
    where = access(selection.op)
    assert where is not None
    at = where.starts(*indices)
    return read_window(array, [at[part[a]] if a in part else 0 for a in range(len(shape))], shape)


def _gathered(
    selection: Selection, part: AxesOfPart, shape: Sequence[int], array: jax.Array, index: jax.Array
) -> jax.Array:
    """The part that is a slice in each row of a batch, or that is picked from one axis."""
    numbers = numbers_of(selection.op)
    narrowed = [axis for axis, at in part.items() if at in selection.sizes]
    batch = [axis for axis in part if axis not in narrowed]
    columns = [tuple(numbers.start_index_map).index(part[axis]) for axis in narrowed]
    where = lax.concatenate([index[..., c : c + 1] for c in columns], index.ndim - 1)
    if not selection.picks:
        where = lax.reshape(where, (*(array.shape[axis] for axis in batch), len(columns)))
    gone = {*batch, *(narrowed if selection.picks else ())}
    return lax.gather(
        array,
        where,
        lax.GatherDimensionNumbers(
            offset_dims=tuple(a for a in range(array.ndim) if a not in gone),
            collapsed_slice_dims=tuple(narrowed) if selection.picks else (),
            start_index_map=tuple(narrowed),
            operand_batching_dims=tuple(batch),
            start_indices_batching_dims=tuple(range(len(batch))),
        ),
        [1 if axis in gone else n for axis, n in enumerate(shape)],
        mode=mode_of(selection.op),
    )


def _computed(
    op: Op, part: AxesOfPart, operands: Sequence[Value], found: ReadRows, rw: Rewriter
) -> Value:
    """A part of what an op computes, from parts of its operands."""
    params = of_shape(op, found.shape(op.result, part))
    return on_others(op, operands, rw, before=found.selection.op, params=params)


def _at_points(found: ReadRows, rw: Rewriter) -> Value:
    """Elements at several places, each computed by itself."""
    op, factors = found.selection.op, list(found.factors)
    code = partial(_elements, found, factors)
    return rw.typed(code, op.result.aval, *found.selection.indices, *factors, before=op)


def _elements(
    found: ReadRows, factors: Sequence[Value], index: jax.Array, *arrays: jax.Array
) -> jax.Array:
    selection, given = found.selection, dict(zip(factors, arrays, strict=True))
    numbers, array, result = numbers_of(selection.op), selection.array, selection.op.result
    lead = index.shape[:-1]
    last = {axis: array.shape[axis] - 1 for axis in selection.sizes}
    columns = {axis: index[..., c] for c, axis in enumerate(numbers.start_index_map)}
    batches = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    for axis, of_index in batches:
        columns[axis] = lax.broadcasted_iota(np.int32, lead, of_index)
    places = {axis: in_range(at, last[axis]).reshape(-1) for axis, at in columns.items()}
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    sizes = enumerate(slice_sizes_of(selection.op))
    kept = [n for axis, n in sizes if axis not in gone]

    def element(at: dict[int, jax.Array]) -> jax.Array:
        made = dict[Value, jax.Array]()
        for op, parts in found.ops.items():
            operands = [
                made[v] if v in made else element_of(given[v], part, found.shape(v, part), at)
                for v, part in zip(op.operands, parts, strict=True)
            ]
            shape = found.shape(op.result, found.needed[op.result])
            made[op.result] = bound(op, *operands, params=of_shape(op, shape))
        return lax.reshape(made[array], kept)

    read = jax.vmap(element)(places).reshape(*lead, *kept)
    window = tuple(numbers.offset_dims)
    to = [*(axis for axis in range(len(result.shape)) if axis not in window), *window]
    read = lax.transpose(read, [to.index(axis) for axis in range(len(to))])
    if mode_of(selection.op) == lax.GatherScatterMode.CLIP:
        return read
    inside = (
        lax.eq(at, places[axis].reshape(lead).astype(at.dtype)) for axis, at in columns.items()
    )
    there = lax.broadcast_in_dim(reduce(lax.bitwise_and, inside), read.shape, to[: len(lead)])
    return lax.select(there, read, _out_of_range(selection.op, read))


def _out_of_range(gather: Op, read: jax.Array) -> jax.Array:
    """What a gather gives for places out of range: a number; or, if it was promised that there are
    none, what XLA reads, whose gradient is zero.
    """
    if fills(gather):
        return lax.full_like(read, fill_value_of(gather))
    return lax.stop_gradient(read)


def element_of(
    array: jax.Array, part: AxesOfPart, shape: Sequence[int], at: dict[int, jax.Array]
) -> jax.Array:
    """The part of an array at one place."""
    if not part:
        return array
    starts = [at[part[axis]] if axis in part else 0 for axis in range(array.ndim)]
    return read_window(array, starts, shape)
