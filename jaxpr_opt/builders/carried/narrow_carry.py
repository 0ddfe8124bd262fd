"""Carry the blocks of an array that a loop touches, in place of the array."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.carried.blocks import RowRange, Touched
from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.bridge.parameters import has_numbers
from jaxpr_opt.bridge.slicing import read_window, write_window
from jaxpr_opt.builders.step_numbers import number_of
from jaxpr_opt.ir.graph import Carry, Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def carry_blocks(touched: Touched, rw: Rewriter) -> None:
    """Let a scan carry the rows that it touches, and put them back after it."""
    found = touched.buffer
    scan, carry = found.loop, found.carry
    assert isinstance(scan, Scan)
    starts = [number_of(rows.start, rw, before=scan) for rows in touched.blocks]
    shapes = [touched.shape(rows.size) for rows in touched.blocks]
    carried = [_carried(touched, rows) for rows in touched.blocks]
    taken = [_taken(touched, shape, at, rw) for shape, at in zip(shapes, starts, strict=True)]
    inits = _reshaped(taken, carried, scan, rw)
    params = [rw.new_value(init.aval, carry.param.name) for init in inits]
    results = [rw.new_value(init.aval) for init in inits]
    first = scan.body.first
    assert first is not None
    ends = _repeated(touched, _reshaped(params, shapes, first, rw), rw)
    ends = _reshaped(ends, carried, scan.body.terminator, rw)
    if carry.result.uses:
        rw.replace(carry.result, _put_back(touched, starts, results, rw))
    new = map(Carry, inits, params, ends, results)
    rw.set_scan(scan, carries=[*(c for c in scan.carries if c.param is not carry.param), *new])
    for op in reversed(found.ops):
        rw.erase(op)


def _carried(touched: Touched, rows: RowRange) -> tuple[int, ...]:
    """The shape in which rows are carried: XLA divides an array among threads along its first axis,
    so that one row of few is carried without the axis of the rows.
    """
    shape, axis = touched.shape(rows.size), rows.axis
    is_alone = rows.size == 1 and rows.start.is_constant and touched.is_of_few_rows
    return (*shape[:axis], *shape[axis + 1 :]) if is_alone else shape


def _reshaped(
    values: Sequence[Value], shapes: Sequence[tuple[int, ...]], before: Op, rw: Rewriter
) -> list[Value]:
    pairs = zip(values, shapes, strict=True)
    return [v if v.shape == shape else rw.reshape(v, shape, before=before) for v, shape in pairs]


def _repeated(touched: Touched, params: Sequence[Value], rw: Rewriter) -> Sequence[Value]:
    """Repeat the accesses on the blocks; these at the end of the step."""
    carry = touched.buffer.carry
    versions: dict[Value, Sequence[Value]] = {carry.param: params}
    accesses = {access.op: access for access in touched.buffer.accesses}
    for op in touched.buffer.ops:
        parts = versions[op.operands[0]]
        access = accesses.get(op)
        if access is None:
            versions[op.result] = parts
            continue
        k = _block_of(touched, access)
        again, update = _Again(access, touched.blocks[k]), access.kind != "read"
        row = [number_of(again.row, rw, before=op)] if again.row.steps else []
        operands = (*access.indices, *row, *([access.value] if update else []))
        aval = params[k].aval if update else op.result.aval
        made = rw.typed(again, aval, parts[k], *operands, before=op)
        if update:
            versions[op.result] = [*parts[:k], made, *parts[k + 1 :]]
        else:
            rw.replace(op.result, made)
    return versions[carry.next]


def _block_of(touched: Touched, access: Access) -> int:
    """The number of the last block that does not start after an access."""
    start = access.window[touched.axis].start
    assert start is not None
    starts = [rows.start.offset for rows in touched.blocks]
    return bisect_right(starts, start.offset) - 1


def _taken(touched: Touched, shape: tuple[int, ...], start: Value, rw: Rewriter) -> Value:
    """Rows of what the loop starts with, of such a shape."""
    init = touched.buffer.carry.init

    def taken(array: jax.Array, at: jax.Array) -> jax.Array:
        return read_window(array, _at(touched, at), shape)

    return rw.typed(taken, init.aval, init, start, before=touched.buffer.loop)


def _put_back(
    touched: Touched, starts: Sequence[Value], blocks: Sequence[Value], rw: Rewriter
) -> Value:
    """The array that the loop starts with, with its last blocks put into it."""
    carry, after = touched.buffer.carry, touched.buffer.loop.next
    assert after is not None

    def put(array: jax.Array, part: jax.Array, at: jax.Array) -> jax.Array:
        return write_window(array, part, _at(touched, at))

    whole, shapes = carry.init, [touched.shape(rows.size) for rows in touched.blocks]
    for start, block in zip(starts, _reshaped(blocks, shapes, after, rw), strict=True):
        whole = rw.typed(put, carry.result.aval, whole, block, start, before=after)
    return whole


def _at(touched: Touched, start: jax.Array) -> list[Any]:
    return [start if d == touched.axis else 0 for d in range(len(touched.buffer.carry.param.shape))]


@dataclass(frozen=True, slots=True, eq=False)
class _Again:
    """An access, repeated on the rows that are carried."""

    access: Access
    rows: RowRange

    @property
    def row(self) -> Affine:
        """Where it starts within the rows: moved by the loop that carries them, and inner ones."""
        start = self.access.window[self.rows.axis].start
        assert start is not None
        return start - self.rows.start

    def __call__(self, array: jax.Array, *rest: jax.Array) -> jax.Array:
        access, axis, count = self.access, self.rows.axis, len(self.access.indices)
        indices, others = rest[:count], rest[count:]
        row: Any = self.row.offset
        if self.row.steps:  # no more than the index was
            row, others = lax.convert_element_type(others[0], indices[-1].dtype), others[1:]
        # Condition 3 of narrow-carried-arrays.
        if not access.is_located and has_numbers(access.op):
            return self._indexed(array, row, *indices, *others)
        starts: list[Any] = access.starts(*indices)
        starts[axis] = row
        return access.sliced(array, starts, *others)

    def _indexed(
        self, array: jax.Array, row: Any, index: jax.Array, *update: jax.Array
    ) -> jax.Array:
        """The same gather or scatter, but for the row (condition 3)."""
        op, at = self.access.op, self.access.component(self.rows.axis)
        rows = jnp.full((*index.shape[:-1], 1), row, index.dtype)
        index = lax.concatenate([index[..., :at], rows, index[..., at + 1 :]], index.ndim - 1)
        assert op.primitive is not None
        again: jax.Array = op.primitive.bind(array, index, *update, **op.params)
        return again
