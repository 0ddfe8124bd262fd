"""A loop that carries the rows of a stack that are picked."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.carried.picked_rows import Pick, PickedRows
from jaxpr_opt.bridge.slicing import in_range
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.ir.graph import Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def carry_rows(found: PickedRows, scan: Scan, rw: Rewriter) -> None:
    """Keep each row that is picked when a step makes it."""
    for op in found.moved:
        rw.move(op, scan)
    row = found.stack.value
    for pick in found.picks:
        place = _place(pick, row.shape, scan, rw)
        start = rw.full(0, row.aval, before=scan)
        carry = rw.carry(scan, start, row.name)
        step = rw.step(scan, before=scan.body.terminator)

        def kept(step: jax.Array, place: jax.Array, old: jax.Array, new: jax.Array) -> jax.Array:
            return lax.select(
                lax.broadcast_in_dim(place == step, old.shape, range(old.ndim)), new, old
            )

        end = scan.body.terminator
        value = rw.typed(kept, start.aval, step, place, carry.param, row, before=end)
        rw.set_last_next(scan, value)
        _read(pick, carry.result, rw)
    rw.set_scan(scan, stacks=[s for s in scan.stacks if s.result is not found.stack.result])


def _place(pick: Pick, shape: tuple[int, ...], scan: Scan, rw: Rewriter) -> Value:
    """The step whose row is read, in each row of a batch."""

    def place(index: jax.Array) -> jax.Array:
        if pick.component is not None:
            index = lax.index_in_dim(index, pick.component, index.ndim - 1, keepdims=False)
        number = in_range(index, scan.length - 1)
        order = [at for at, _ in sorted(pick.batch, key=lambda pair: pair[1])]
        rest = [at for at in range(index.ndim) if at not in order]
        sizes = {axis: index.shape[at] for at, axis in pick.batch}
        spread = [sizes.get(axis, 1) for axis in range(len(shape))]
        return lax.reshape(lax.transpose(number, [*order, *rest]), spread)

    return rw.insert(place, pick.index, before=scan)


def _like(number: int, index: jax.Array) -> Any:
    return np.asarray(number, index.dtype)


def _last(length: int, index: jax.Array) -> Any:
    """The last of so many places, or the last that an index can say."""
    return _like(min(length - 1, int(np.iinfo(index.dtype).max)), index)


def _read(pick: Pick, row: Value, rw: Rewriter) -> None:
    """Read the only row that there is, as the rows of the stack were read."""
    op = pick.op
    array = rw.reshape(row, (1, *row.shape), before=op)
    for turn in pick.turned:
        array = on_others(turn, [array], rw, before=op)
    operands = [array, *op.operands[1:]]
    operands[pick.position] = _only(pick, pick.index, rw)
    rw.replace(op.result, on_others(op, operands, rw, before=op))
    rw.erase_unread(op)


def _only(pick: Pick, index: Value, rw: Rewriter) -> Value:
    """The index of the only row, or one out of range if it was: the row may be filled in, and have
    no gradient.
    """
    if pick.component is None:
        return rw.scalar(0, index.dtype)
    length = pick.op.operands[0].shape[pick.axis]

    def only(index: jax.Array) -> jax.Array:
        is_below = lax.lt(index, _like(0, index))
        is_out = lax.bitwise_or(is_below, lax.gt(index, _last(length, index)))
        place = lax.select(is_out, lax.full_like(index, 1), lax.full_like(index, 0))
        is_place = lax.broadcasted_iota(np.int32, index.shape, index.ndim - 1) == pick.component
        return lax.select(is_place, place, index)

    return rw.insert(only, index, before=pick.op)
