"""What is made of rows that are added to zeros, computed from the rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.windows.added_rows import AddedRows
from jaxpr_opt.analysis.windows.read_rows import SHAPED
from jaxpr_opt.analysis.windows.scatter_chains import Link, Piece, Pieces
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import mode_of, numbers_of
from jaxpr_opt.bridge.slicing import add_at, read_window, rows_at, write_window
from jaxpr_opt.builders.residual_transfer import stacked
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter

_NUMBER = np.int32


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
        _replace_outside(value, _dense(value, made[value], rows, found, rw), found, rw)
    for op in reversed(found.ops):
        if found.axes[op.result] is None:
            rw.replace(op.result, made[op.result])
        rw.erase(op)


def _replace_outside(value: Value, dense: Value, found: AddedRows, rw: Rewriter) -> None:
    """Let what needs all of a value read it as an array."""
    rw.replace(value, dense, lambda use: use.op not in found.ops)


def _computed(op: Op, operands: Sequence[Value], found: AddedRows, rw: Rewriter) -> Value:
    """What an op makes of the rows."""
    axis, shape = found.axes[op.result], list(op.result.shape)
    if axis is not None:
        shape[axis] = found.count
    params = {SHAPED[op.name]: tuple(shape)} if op.name in SHAPED else {}
    return on_others(op, operands, rw, before=op, params={**op.params, **params})


def _read(
    value: Value, axis: int | None, rows: _Rows, found: AddedRows, op: Op, rw: Rewriter
) -> Value:
    """The rows of an array that those that are added are multiplied by."""
    if axis is None:
        return value
    code = partial(_read_run, axis, found.count) if rows.are_run else partial(_read_at, axis)
    return rw.typed(code, value.aval, value, rows.places, before=op)


def _dense(value: Value, made: Value, rows: _Rows, found: AddedRows, rw: Rewriter) -> Value:
    """The array in which the rows are."""
    axis, op = found.axes[value], value.op
    assert op is not None and axis is not None
    code = partial(_written_run if rows.are_run else _added_at, axis, value.shape)
    return rw.typed(code, value.aval, made, rows.places, before=op)


def _read_at(axis: int, array: jax.Array, places: jax.Array) -> jax.Array:
    return rows_at(array, places, axis)


def _read_run(axis: int, count: int, array: jax.Array, first: jax.Array) -> jax.Array:
    sizes = [count if d == axis else n for d, n in enumerate(array.shape)]
    return read_window(array, _at(axis, first, array.ndim), sizes)


def _added_at(axis: int, shape: Sequence[int], rows: jax.Array, places: jax.Array) -> jax.Array:
    return add_at(lax.full(shape, 0, rows.dtype), rows, places, axis)


def _written_run(axis: int, shape: Sequence[int], rows: jax.Array, first: jax.Array) -> jax.Array:
    return write_window(lax.full(shape, 0, rows.dtype), rows, _at(axis, first, rows.ndim))


def _at(axis: int, first: Any, rank: int) -> list[Any]:
    return [first if d == axis else 0 for d in range(rank)]


# -- the rows ------------------------------------------------------------------------------------


def _joined(links: Sequence[Link], axis: int, rw: Rewriter, before: Op) -> _Rows:
    """The rows that several links add, one after the other."""
    each = [_rows(link, axis, rw, before) for link in links]
    if len(each) == 1:
        return each[0]
    listed = [_listed(*pair, axis, rw, before) for pair in zip(each, links, strict=True)]
    values = rw.insert(partial(_concatenated, axis), *(r.values for r in listed), before=before)
    places = rw.insert(partial(_concatenated, 0), *(r.places for r in listed), before=before)
    return _Rows(values, places, are_run=False)


def _concatenated(axis: int, *arrays: jax.Array) -> jax.Array:
    return lax.concatenate(arrays, axis)


def _listed(rows: _Rows, link: Link, axis: int, rw: Rewriter, before: Op) -> _Rows:
    """The same rows, with a number for each."""
    if not rows.are_run:
        return rows
    count = rows.values.shape[axis]
    last = link.result.shape[axis] - count

    def places(first: jax.Array) -> jax.Array:
        start = lax.convert_element_type(_in_range(first, last), _NUMBER)
        return lax.add(lax.broadcast(start, (count,)), lax.iota(_NUMBER, count))

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
        places = rw.insert(lambda: _NUMBER(link.starts[axis]), before=before)
    if tuple(of_rows) != window:
        values = rw.insert(rows, values, *link.indices, before=before)
    return _Rows(values, places, are_run=True)


def _scattered(link: Piece, axis: int, rw: Rewriter, before: Op) -> _Rows:
    """The rows that a scatter adds; zeros for those that it drops."""
    numbers, last = numbers_of(link.op), link.result.shape[axis] - 1
    kept, drops = numbers.update_window_dims, mode_of(link.op) != lax.GatherScatterMode.CLIP
    lead = [d for d in range(len(link.update.shape)) if d not in kept]
    count = prod(link.indices[0].shape)

    def rows(update: jax.Array, index: jax.Array) -> jax.Array:
        shape = [count if d == axis else n for d, n in enumerate(link.result.shape)]
        moved = lax.reshape(lax.transpose(update, [*kept[:axis], *lead, *kept[axis:]]), shape)
        number = lax.reshape(index, (count,))
        if not drops:
            return moved
        inside = lax.eq(number, _in_range(number, last))
        return lax.select(
            lax.broadcast_in_dim(inside, moved.shape, (axis,)), moved, lax.full_like(moved, 0)
        )

    def places(index: jax.Array) -> jax.Array:
        number = lax.reshape(index, (count,))
        return lax.convert_element_type(_in_range(number, last), _NUMBER)

    values = rw.insert(rows, link.update, *link.indices, before=before)
    return _Rows(values, rw.insert(places, *link.indices, before=before), are_run=False)


def _in_range(index: jax.Array, last: int) -> jax.Array:
    """The nearest indices from 0 to the last, which the dtype need not hold."""
    least, most = (
        np.asarray(n, index.dtype) for n in (0, min(last, dtypes.limits(index.dtype)[1]))
    )
    return lax.clamp(least, index, most)
