"""Rows are added up for each row of a table, and then mapped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.rows.added_rows import picked_axis
from jaxpr_opt.analysis.rows.mapped_reads import Places
from jaxpr_opt.analysis.rows.read_rows import AxesOfPart
from jaxpr_opt.analysis.rows.summed_rows import SummedRows
from jaxpr_opt.builders.rows.mapped_reads import (
    OfTables,
    marked,
    mode_within,
    place_of_rows,
    without_other_places,
)
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def sum_first(found: SummedRows, rw: Rewriter) -> None:
    """Add up rows that belong to one row of a table before what is linear in them is made."""
    tables, unread = OfTables(found.rows.at, found.axes, rw), found.unread
    for each in found.sums:
        for value in each.operands:
            _make(value, found, tables, each)
        _sum(each, tables)
    for op in [*found.sums, *unread]:
        rw.erase(op)


def _make(value: Value, found: SummedRows, tables: OfTables, before: Op) -> None:
    """Make a value of all rows, and all that it is made of."""
    needed, pending = dict[Op, None](), [value]
    for each in pending:
        if each in tables.made or not found.axes.get(each):
            continue
        if each in found.leaves:
            code = partial(_added, found.rows.at, found.axes[each], tables.shape(each))
            index = tables.index(before)
            tables.made[each] = tables.rw.typed(code, each.aval, each, index, before=before)
        elif each.op in found.rows.reads:
            assert each.op is not None
            tables.table(each.op, before)
        elif each.op in found.ops or each.op in found.rows.ops:
            assert each.op is not None
            needed[each.op] = None
            pending += each.op.operands
    region = before.region
    assert region is not None
    for op in sorted(needed, key=region.order):
        tables.computed(op, before)


def _sum(op: Op, tables: OfTables) -> None:
    """The sum of what is made of all rows."""
    rw, at = tables.rw, tables.at
    # Condition 5 of add-before-mapping.
    if op.name == "scatter-add":
        array, _, update = op.operands
        axis = picked_axis(op)
        assert axis is not None
        code = partial(_onto, at, tables.axes[update], axis)
        operands = array, tables.made[update], tables.index(op)
        made = rw.typed(code, op.result.aval, *operands, before=op)
    else:
        made = tables.computed(op, op)
    rw.replace(op.result, made)


def _added(
    at: Places, axes: AxesOfPart, shape: Sequence[int], rows: jax.Array, index: jax.Array
) -> jax.Array:
    """The sum of the rows at the places of each row of a table."""
    place = place_of_rows(axes)
    numbers = lax.ScatterDimensionNumbers(
        tuple(a for a in range(rows.ndim) if a not in axes), (place,), (place,)
    )
    zeros = jnp.zeros(without_other_places(shape, axes), rows.dtype)
    return lax.reshape(lax.scatter_add(zeros, index, rows, numbers, mode=mode_within(at)), shape)


def _onto(
    at: Places,
    axes: AxesOfPart,
    axis: int,
    array: jax.Array,
    rows: jax.Array,
    index: jax.Array,
) -> jax.Array:
    """An array, with rows added along an axis; of those at no place, zeros."""
    place = place_of_rows(axes)
    rows = lax.reshape(rows, without_other_places(rows.shape, axes))
    is_read = lax.broadcast_in_dim(marked(at, index), rows.shape, (place,))
    rows = lax.select(is_read, rows, jnp.zeros_like(rows))
    rows = lax.slice_in_dim(rows, 0, at.rows, axis=place)
    return lax.add(array, jnp.moveaxis(rows, place, axis))
