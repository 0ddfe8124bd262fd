"""The rows that are read, computed from parts of what all rows were computed from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
from jax import lax

from jaxpr_opt.analysis.rows.read_rows import AxesOfPart, ReadRows
from jaxpr_opt.analysis.rows.selections import Selection
from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.bridge.parameters import mode_of, numbers_of, of_shape
from jaxpr_opt.bridge.slicing import read_window
from jaxpr_opt.builders.rows.read_points import compute_points
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def compute_rows(found: ReadRows, rw: Rewriter) -> Value:
    """What is read; the ops that computed all rows are then read by each other only."""
    if found.selection.points:
        return compute_points(found, rw)
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
