"""Compute functions of rows that are added to zeros from the rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.rows.added_rows import AddedRows
from jaxpr_opt.analysis.sparse.scatter_chains import Link, Piece, Pieces
from jaxpr_opt.bridge.parameters import mode_of, numbers_of, of_shape
from jaxpr_opt.bridge.slicing import (
    add_at,
    in_range,
    read_run,
    rows_at,
    write_run,
    write_window,
)
from jaxpr_opt.builders.residual_transfer import stacked
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


class _Rows(NamedTuple):
    """Rows that are added, and the number of each; only the first number if they are a run, and
    that may be out of range, as that of a slice.
    """

    values: Value
    places: Value
    are_run: bool


def compute_rows(found: AddedRows, rw: Rewriter) -> None:
    """Replace all that is made of the array; nothing reads it then."""
    first = next(iter(found.ops))
    rows = _joined(found.links, found.axis, rw, first)
    made = {found.array: rows.values}
    for op, axes in found.ops.items():
        pairs = zip(op.operands, axes, strict=True)
        operands = [made[v] if v in made else _read(v, a, rows, found, op, rw) for v, a in pairs]
        made[op.result] = _computed(op, operands, found, rw)
    for value in found.dense:
        assert value.op is not None
        dense = _dense(value, made[value], rows, found, rw)
        rw.replace(value, dense, lambda use: use.op not in found.ops)
    for op in reversed(found.ops):
        if found.axes[op.result] is None:
            rw.replace(op.result, made[op.result])
        rw.erase(op)


def _computed(op: Op, operands: Sequence[Value], found: AddedRows, rw: Rewriter) -> Value:
    """What an op makes of the rows."""
    axis, shape = found.axes[op.result], list(op.result.shape)
    if axis is not None:
        shape[axis] = found.count
    return on_others(op, operands, rw, before=op, params=of_shape(op, shape))


def _read(
    value: Value, axis: int | None, rows: _Rows, found: AddedRows, op: Op, rw: Rewriter
) -> Value:
    """The rows of an array that those that are added are multiplied by."""
    if axis is None:
        return value
    run = partial(read_run, count=found.count, axis=axis)
    code = run if rows.are_run else partial(rows_at, axis=axis)
    return rw.typed(code, value.aval, value, rows.places, before=op)


def _dense(value: Value, made: Value, rows: _Rows, found: AddedRows, rw: Rewriter) -> Value:
    """The array in which the rows are."""
    axis, op = found.axes[value], value.op
    assert op is not None and axis is not None
    put = write_run if rows.are_run else add_at

    def in_zeros(rows: jax.Array, places: jax.Array) -> jax.Array:
        return put(lax.full(value.shape, 0, rows.dtype), rows, places, axis)

    return rw.typed(in_zeros, value.aval, made, rows.places, before=op)


# -- the rows ------------------------------------------------------------------------------------


def _joined(links: Sequence[Link], axis: int, rw: Rewriter, before: Op) -> _Rows:
    """The rows that several links add, one after the other."""
    each = [_rows(link, axis, rw, before) for link in links]
    if len(each) == 1:
        return each[0]
    listed = [_listed(*pair, axis, rw, before) for pair in zip(each, links, strict=True)]
    values = rw.insert(partial(_joined_along, axis), *(r.values for r in listed), before=before)
    places = rw.insert(partial(_joined_along, 0), *(r.places for r in listed), before=before)
    return _Rows(values, places, are_run=False)


def _joined_along(axis: int, *arrays: jax.Array) -> jax.Array:
    return lax.concatenate(arrays, axis)


def _listed(rows: _Rows, link: Link, axis: int, rw: Rewriter, before: Op) -> _Rows:
    """The same rows, with a number for each."""
    if not rows.are_run:
        return rows
    count = rows.values.shape[axis]
    last = link.result.shape[axis] - count

    def places(first: jax.Array) -> jax.Array:
        return lax.add(lax.broadcast(in_range(first, last), (count,)), lax.iota(np.int32, count))

    return _Rows(rows.values, rw.insert(places, rows.places, before=before), are_run=False)


def _rows(link: Link, axis: int, rw: Rewriter, before: Op) -> _Rows:
    if isinstance(link, Pieces):
        return _of_steps(link, axis, rw, before)
    return (_scattered if link.op.name == "scatter-add" else _written)(link, axis, rw, before)


def _of_steps(link: Pieces, axis: int, rw: Rewriter, before: Op) -> _Rows:
    """The rows of all steps."""
    scan, (last, *_), end = link.op, link.inner.links, link.op.body.terminator
    rows = _listed(_joined(link.inner.links, axis, rw, end), last, axis, rw, end)
    shape = list(rows.values.shape)
    shape[axis] *= scan.length
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)]

    def merged(stack: jax.Array) -> jax.Array:
        return lax.reshape(lax.transpose(stack, order), shape)

    values = rw.insert(merged, stacked(rows.values, scan, rw), before=before)
    places = stacked(rows.places, scan, rw)
    return _Rows(values, rw.reshape(places, (prod(places.shape),), before=before), are_run=False)


def _written(link: Piece, axis: int, rw: Rewriter, before: Op) -> _Rows:
    """The rows in which a window is, zero but for that."""
    shape, window = link.result.shape, link.update.shape
    of_rows = [window[d] if d == axis else n for d, n in enumerate(shape)]

    def rows(update: jax.Array, *starts: jax.Array) -> jax.Array:
        at = [0 if d == axis else start for d, start in enumerate(starts or link.starts)]
        return write_window(lax.full(of_rows, 0, update.dtype), update, at)

    values = link.update
    if link.indices:
        places = link.indices[axis]
    else:
        places = rw.scalar(np.int32(link.starts[axis]), np.int32)
    if tuple(of_rows) != window:
        values = rw.insert(rows, values, *link.indices, before=before)
    return _Rows(values, places, are_run=True)


def _scattered(link: Piece, axis: int, rw: Rewriter, before: Op) -> _Rows:
    """The rows that a scatter adds; zeros for those that it drops."""
    kept, last = numbers_of(link.op).update_window_dims, link.result.shape[axis] - 1
    drops = mode_of(link.op) != lax.GatherScatterMode.CLIP
    lead = [d for d in range(len(link.update.shape)) if d not in kept]
    count = prod(link.indices[0].shape)

    def places(index: jax.Array) -> jax.Array:
        return in_range(lax.reshape(index, (count,)), last)

    def rows(update: jax.Array, index: jax.Array, places: jax.Array) -> jax.Array:
        shape = [count if d == axis else n for d, n in enumerate(link.result.shape)]
        moved = lax.reshape(lax.transpose(update, [*kept[:axis], *lead, *kept[axis:]]), shape)
        if not drops:
            return moved
        there = lax.convert_element_type(places, index.dtype)
        inside = lax.eq(lax.reshape(index, (count,)), there)
        spread = lax.broadcast_in_dim(inside, moved.shape, (axis,))
        return lax.select(spread, moved, lax.full_like(moved, 0))

    numbers = rw.insert(places, *link.indices, before=before)
    values = rw.insert(rows, link.update, *link.indices, numbers, before=before)
    return _Rows(values, numbers, are_run=False)
