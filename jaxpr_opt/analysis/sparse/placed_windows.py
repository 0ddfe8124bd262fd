"""Windows in zeros that are put into larger zeros: they are windows of those.

The transpose of a read of a read, ``tables[k][i]``, makes such arrays.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.sparse.moved_writes import window_in_zeros
from jaxpr_opt.analysis.sparse.scatter_chains import SCATTERS, Piece, added
from jaxpr_opt.analysis.values.algebra import Plainer
from jaxpr_opt.analysis.values.moves import keeps_order
from jaxpr_opt.analysis.windows.window_primitives import (
    UPDATE,
    indexed_axes,
    places,
    written_at_axes,
    written_within,
)
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import broadcast_dimensions_of, has_numbers, numbers_of
from jaxpr_opt.bridge.slicing import write_window
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import SUMS


def placed_before(op: Op) -> Plainer | None:
    """A window in zeros that is put into larger zeros, and then added to others, is a window in
    those: the cotangent of a read of a part of a table.
    """
    piece = _put(op)
    write = window_in_zeros(op, piece.update, UPDATE) if piece is not None else None
    if piece is None or write is None:
        return None
    inner, outer, at = write.result.shape, op.result.shape, places(write)
    parts = [axis for axis, size in enumerate(inner) if size != outer[axis]]
    # Condition 2 of map-before-writing.
    if has_numbers(write) and _selected(write).intersection(parts):
        return None
    # Condition 2 of map-before-writing.
    if not all(dtypes.holds(v.dtype, max(outer)) for v in at):
        return None
    value = write.operands[UPDATE[write.name]]
    build = _scattered if has_numbers(write) else _written
    return Plainer(partial(build, write, piece, parts), (value, *at, *piece.indices))


def raised_before(op: Op) -> Plainer | None:
    """Windows in zeros that get more axes, of size 1, and are then added to others, are windows in
    zeros with those axes.
    """
    write = window_in_zeros(op, op.operands[0], SCATTERS)
    # Condition 2 of map-before-writing.
    if write is None or not keeps_order(op):
        return None
    there = broadcast_dimensions_of(op)
    _, index, value = write.operands

    def raised(value: jax.Array, index: jax.Array) -> jax.Array:
        zeros = lax.full(op.result.shape, 0, value.dtype)
        return written_at_axes(write, there, zeros, value, index)

    return Plainer(raised, (value, index))


def each_before(op: Op) -> Plainer | None:
    """A sum of windows in zeros that is moved is the sum of those that are moved."""
    piece = _put(op) if op.name in {"pad", "dynamic_update_slice"} else None
    total = op.operands[0] if piece is None else piece.update
    # Condition 1 of map-before-writing.
    terms = _windows(op, total) if len(total.uses) == 1 else None
    if terms is None or terms == [total]:
        return None
    slot = op.operands.index(total)
    others = [v for at, v in enumerate(op.operands) if at != slot]

    def moved(*values: jax.Array) -> jax.Array:
        given = dict(zip(terms, values, strict=False))
        rest = values[len(terms) :]

        def made(value: Value) -> Any:
            if value in given:
                return _bound(op, *rest[:slot], given[value], *rest[slot:])
            assert value.op is not None
            return _bound(value.op, *map(made, value.op.operands))

        whole: jax.Array = made(total)
        return whole

    return Plainer(moved, (*terms, *others))


def _bound(op: Op, *values: Any) -> Any:
    assert op.primitive is not None
    return op.primitive.bind(*values, **op.params)


def _windows(op: Op, total: Value) -> list[Value] | None:
    """The small windows in zeros of which a value is the sum, if an op may be moved before it."""
    terms, pending = list[Value](), [total]
    while pending:
        value = pending.pop()
        # Condition 1 of map-before-writing.
        if value.op is not None and value.op.name in SUMS and len(value.uses) == 1:
            pending += reversed(value.op.operands)
        # Condition 2 of map-before-writing.
        elif window_in_zeros(op, value, UPDATE) is None or len(terms) == limits.TERMS_OF_A_SUM:
            return None
        else:
            terms.append(value)
    return terms


def _put(op: Op) -> Piece | None:
    """The piece that an op alone puts into zeros."""
    found = added(op.result)
    (piece,) = found.links if len(found.links) == 1 and found.starts_at_zero else (None,)
    return piece if isinstance(piece, Piece) and piece.op is op else None


def _selected(scatter: Op) -> set[int]:
    """The axes along which the places of windows differ."""
    return {*indexed_axes(scatter), *numbers_of(scatter).operand_batching_dims}


def _starts(piece: Piece, indices: tuple[jax.Array, ...]) -> list[Any]:
    """Where a value is put, clamped."""
    if not indices:
        return [*piece.starts]
    sizes = zip(indices, piece.result.shape, piece.update.shape, strict=True)
    return [_clamped(start, n - size) for start, n, size in sizes]


def _clamped(start: jax.Array, last: int) -> jax.Array:
    return lax.clamp(np.asarray(0, start.dtype), start, np.asarray(last, start.dtype))


def _scattered(
    write: Op, piece: Piece, parts: list[int], value: jax.Array, *rest: jax.Array
) -> jax.Array:
    starts = _starts(piece, rest[1:])
    zeros = lax.full(piece.result.shape, 0, value.dtype)
    return written_within(write, {axis: starts[axis] for axis in parts}, zeros, value, rest[0])


def _written(
    write: Op, piece: Piece, parts: list[int], value: jax.Array, *rest: jax.Array
) -> jax.Array:
    at, starts = [*rest[: value.ndim]], _starts(piece, rest[value.ndim :])
    for axis in parts:
        last = write.result.shape[axis] - value.shape[axis]
        start = lax.convert_element_type(starts[axis], at[axis].dtype)
        at[axis] = lax.add(_clamped(at[axis], last), start)
    return write_window(lax.full(piece.result.shape, 0, value.dtype), value, at)
