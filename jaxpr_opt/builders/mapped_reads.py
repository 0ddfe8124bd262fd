"""What is made of the rows of tables, and read at many places."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.windows.mapped_reads import MappedReads
from jaxpr_opt.bridge.parameters import (
    fill_value_of,
    has_unique_indices,
    mode_of,
    numbers_of,
    of_shape,
    slice_sizes_of,
)
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def map_tables(found: MappedReads, rw: Rewriter) -> None:
    """Compute all rows of the tables, and read what comes of them; the ops that computed the rows
    that are read are gone.
    """
    rows = found.rows + is_filled(found)
    first = next(iter(found.ops))
    place = partial(_places, found.rows) if is_filled(found) else None
    index = found.index if place is None else rw.insert(place, found.index, before=first)
    made: dict[Value, Value] = {}
    for read in found.reads:
        code = partial(_table, read, _shape(found, read.result, rows))
        made[read.result] = rw.typed(code, read.result.aval, read.operands[0], before=first)
    for op in found.ops:
        for value in op.operands:
            if value not in made and found.axes.get(value):
                assert value.op is not None
                shape = _shape(found, value, rows)
                params = of_shape(value.op, shape)
                made[value] = on_others(value.op, value.op.operands, rw, before=op, params=params)
        operands = [made.get(v, v) for v in op.operands]
        params = of_shape(op, _shape(found, op.result, rows))
        made[op.result] = on_others(op, operands, rw, before=op, params=params)
    for value in found.made:
        assert value.op is not None
        code = partial(_read, found, value)
        rw.replace(value, rw.typed(code, value.aval, made[value], index, before=value.op))
    for op in reversed(found.ops):
        rw.erase(op)
    for read in found.reads:
        rw.erase_unread(read)


def is_filled(found: MappedReads) -> bool:
    """Whether what is read out of range is filled: it is computed as one more row."""
    return bool(mode_of(found.reads[0]) == lax.GatherScatterMode.FILL_OR_DROP)


def _shape(found: MappedReads, value: Value, rows: int) -> tuple[int, ...]:
    """The shape of an array with the rows of the tables along the last axis of the places."""
    last = len(found.places) - 1
    sizes = {axis: rows if k == last else 1 for axis, k in found.axes[value].items()}
    return tuple(sizes.get(axis, n) for axis, n in enumerate(value.shape))


def _places(rows: int, index: jax.Array) -> jax.Array:
    """The places, those out of range behind the last row."""
    return jnp.where((index >= 0) & (index < rows), index, rows)


def _table(read: Op, shape: tuple[int, ...], table: jax.Array) -> jax.Array:
    """A table, its rows along the last axis of the places; with what is read out of range, if that
    is filled.
    """
    numbers = numbers_of(read)
    (axis,) = numbers.start_index_map
    window = [a for a in range(table.ndim) if a != axis]
    if mode_of(read) == lax.GatherScatterMode.FILL_OR_DROP:
        count = table.shape[axis] + 1
        table = lax.gather(
            table,
            lax.iota("int32", count)[:, None],
            lax.GatherDimensionNumbers(tuple(window), (axis,), (axis,)),
            slice_sizes_of(read),
            mode=mode_of(read),
            fill_value=fill_value_of(read),
        )
    lead = [a for a in range(len(shape)) if a not in numbers.offset_dims]
    to = dict(zip(window, numbers.offset_dims, strict=True)) | {axis: lead[-1]}
    order = sorted(range(table.ndim), key=to.__getitem__)
    return lax.reshape(lax.transpose(table, order), shape)


def _read(found: MappedReads, value: Value, table: jax.Array, index: jax.Array) -> jax.Array:
    """What is made of the rows that are read."""
    (read, *_), axes = found.reads, found.axes[value]
    *_, axis = sorted(axes)
    window = tuple(a for a in range(table.ndim) if a not in axes)
    place = axis - len(axes) + 1
    shape = [n for a, n in enumerate(table.shape) if a not in axes or a == axis]
    sizes = [1 if a == place else n for a, n in enumerate(shape)]
    return lax.gather(
        lax.reshape(table, shape),
        index,
        lax.GatherDimensionNumbers(window, (place,), (place,)),
        sizes,
        unique_indices=has_unique_indices(read) and not is_filled(found),
        mode=lax.GatherScatterMode.CLIP if is_filled(found) else mode_of(read),
    )
