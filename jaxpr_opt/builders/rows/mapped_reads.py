"""Compute a function of the rows of tables once, and read the result at many places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.rows.mapped_reads import MappedReads, Places
from jaxpr_opt.analysis.rows.read_rows import AxesOfPart
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    fill_value_of,
    fills,
    has_unique_indices,
    mode_of,
    numbers_of,
    of_shape,
    slice_sizes_of,
)
from jaxpr_opt.bridge.slicing import in_range, read_run
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class OfTables:
    """What is made of all rows of tables, where it is made of those at some places."""

    at: Places
    axes: Mapping[Value, AxesOfPart]
    """Of what is made, the axes along which the rows lie."""
    rw: Rewriter
    keeps_unread: bool = False
    """Whether rows at no place stay as they are, not one that is at a place: nothing multiplies
    them."""
    made: dict[Value, Value] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows; one more if there is one for all places out of range."""
        return self.at.rows + self.at.is_filled

    def shape(self, value: Value) -> tuple[int, ...]:
        """The shape of an array with these rows, along the last axis of the places."""
        last = len(self.at.shape) - 1
        sizes = {axis: self.rows if k == last else 1 for axis, k in self.axes[value].items()}
        return tuple(sizes.get(axis, n) for axis, n in enumerate(value.shape))

    def table(self, read: Op, before: Op) -> None:
        """All rows of the table that a gather reads."""
        code, shape = partial(_table, read), self.shape(read.result)
        table = self.rw.typed(
            lambda x: code(shape, x), read.result.aval, read.operands[0], before=before
        )
        if not self.keeps_unread:
            axis, index = max(self.axes[read.result]), self.index(before)
            others = partial(_of_read_rows, self.at, axis)
            table = self.rw.typed(others, read.result.aval, table, index, before=before)
        self.made[read.result] = table

    def computed(self, op: Op, before: Op, operands: Mapping[int, Value] | None = None) -> Value:
        """What an op makes of all rows."""
        read = [self.of_all_rows(v, before) for v in op.operands]
        read = [(operands or {}).get(k, v) for k, v in enumerate(read)]
        has_rows = op.result in self.axes
        params = of_shape(op, self.shape(op.result)) if has_rows else None
        made = on_others(op, read, self.rw, before=before, params=params)
        if has_rows:
            self.made[op.result] = made
        return made

    def of_all_rows(self, value: Value, before: Op) -> Value:
        """A value of all rows, if it is one of rows: it is made already, or repeats something."""
        if not self.axes.get(value):
            return value
        if value not in self.made:
            assert value.op is not None
            params = of_shape(value.op, self.shape(value))
            self.made[value] = on_others(
                value.op, value.op.operands, self.rw, before=before, params=params
            )
        return self.made[value]

    def index(self, before: Op) -> Value:
        """The places, those out of range behind the last row if there is a row for them."""
        index = self.at.index
        if not self.at.is_filled and index.dtype == np.int32:
            return index
        if index not in self.made:
            self.made[index] = self.rw.insert(partial(_places, self.at), index, before=before)
        return self.made[index]


def map_tables(found: MappedReads, rw: Rewriter) -> None:
    """Compute all rows of the tables, and read what comes of them; the ops that computed the rows
    that are read are gone.
    """
    # Condition 4 of map-before-reading.
    keeps_unread = rw.graph.phase == "final"
    tables = OfTables(found.at, found.axes, rw, keeps_unread)
    index = tables.index(next(iter(found.ops)))
    for op in found.ops:
        for read in found.reads:
            if read.result in op.operands and read.result not in tables.made:
                tables.table(read, op)
        tables.computed(op, op)
    for value in found.made:
        assert value.op is not None
        code = partial(_read, found, value)
        made = rw.typed(code, value.aval, tables.made[value], index, before=value.op)
        rw.replace(value, made)
    for op in reversed(found.ops):
        rw.erase(op)
    for read in found.reads:
        rw.erase_unread(read)


def _places(at: Places, index: jax.Array) -> jax.Array:
    """Places as integers that can number all rows; what is out of range stays so."""
    if not dtypes.holds(np.int32, np.iinfo(index.dtype).max):
        least = 0 if jnp.issubdtype(index.dtype, jnp.unsignedinteger) else -1
        index = lax.clamp(np.asarray(least, index.dtype), index, np.asarray(at.rows, index.dtype))
    index = index.astype(np.int32)
    return jnp.where((index >= 0) & (index < at.rows), index, at.rows) if at.is_filled else index


def _table(read: Op, shape: tuple[int, ...], table: jax.Array) -> jax.Array:
    """A table, its rows along the last axis of the places; with what is read out of range, if that
    is filled.
    """
    numbers = numbers_of(read)
    (axis,) = numbers.start_index_map
    window = [a for a in range(table.ndim) if a != axis]
    if fills(read):
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


def _of_read_rows(at: Places, axis: int, table: jax.Array, index: jax.Array) -> jax.Array:
    """A table whose rows that are at no place are that at the first."""
    first = in_range(lax.reshape(index, (index.size,))[0], table.shape[axis] - 1)
    row = read_run(table, first, 1, axis)
    is_read = lax.broadcast_in_dim(marked(at, index), table.shape, (axis,))
    return lax.select(is_read, table, jnp.broadcast_to(row, table.shape))


def marked(at: Places, index: jax.Array) -> jax.Array:
    """Which rows are at a place."""
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    rows, there = jnp.zeros(at.rows + at.is_filled, bool), jnp.ones(at.shape, bool)
    return lax.scatter(rows, index, there, numbers, mode=mode_within(at))


def mode_within(at: Places) -> lax.GatherScatterMode:
    """What is done out of range, where there is a row for what is filled."""
    return lax.GatherScatterMode.CLIP if at.is_filled else at.mode


def place_of_rows(axes: AxesOfPart) -> int:
    """The axis along which the rows lie, without the other axes of the places."""
    return max(axes) - len(axes) + 1


def without_other_places(shape: Sequence[int], axes: AxesOfPart) -> list[int]:
    """A shape with one axis for all places."""
    return [n for a, n in enumerate(shape) if a not in axes or a == max(axes)]


def _read(found: MappedReads, value: Value, table: jax.Array, index: jax.Array) -> jax.Array:
    """What is made of the rows that are read."""
    (read, *_), axes, is_filled = found.reads, found.axes[value], found.at.is_filled
    window = tuple(a for a in range(table.ndim) if a not in axes)
    place, shape = place_of_rows(axes), without_other_places(table.shape, axes)
    sizes = [1 if a == place else n for a, n in enumerate(shape)]
    return lax.gather(
        lax.reshape(table, shape),
        index,
        lax.GatherDimensionNumbers(window, (place,), (place,)),
        sizes,
        unique_indices=has_unique_indices(read) and not is_filled,
        mode=mode_within(found.at),
    )
