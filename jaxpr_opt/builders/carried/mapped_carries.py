"""A loop that carries what its steps make of the rows of a carry, of which each changes few."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import lax

from jaxpr_opt.analysis.carried.mapped_carries import Change, MappedCarries, Shift, written_rows
from jaxpr_opt.analysis.rows.row_axes import axis_of_operand
from jaxpr_opt.analysis.values.handed_on import readers
from jaxpr_opt.bridge.parameters import of_shape
from jaxpr_opt.bridge.slicing import read_run, write_run
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Carry, Op, Value
from jaxpr_opt.ir.rewriter import Rewriter

Part = Callable[[Value, int, Op], Value]
"""The rows of a value along an axis that have changed, made before an op."""


def carry_mapped(found: MappedCarries, rw: Rewriter) -> None:
    """Carry what the ops make of all rows, and write to it what they make of those that change."""
    scan, read = found.scan, found.read
    body, end = scan.body, scan.body.terminator
    begun = {root: carry.init for root, carry in found.roots.items()}
    before = backward_slice(read, lambda v: v.region is not body or v in begun)
    rw.clone(before, begun, scan)
    params = {v: rw.new_value(v.aval, v.name) for v in read}
    rows = [_rows(found, change, rw) for change in found.changes]
    more = []
    for value, param in params.items():
        assert value.op is not None
        at, after = value.op if found.handed_on else end, param
        for change, made in zip(found.changes, rows, strict=True):
            after = _put(found, change, after, made[value], found.rows[value], at, rw)
        rw.replace(value, after if found.handed_on else param, _is_elsewhere(value, found))
        more.append(Carry(begun[value], param, after, rw.new_value(value.aval)))
    for op in reversed(found.ops):
        rw.erase(op)
    rw.set_scan(scan, carries=[*scan.carries, *more])


def _is_elsewhere(value: Value, found: MappedCarries) -> Callable[[Any], bool]:
    return readers(value, found.ops).__contains__


def _rows(found: MappedCarries, change: Change, rw: Rewriter) -> dict[Value, Value]:
    """What the ops make of the rows that change."""
    made: dict[Value, Value] = {}
    for op in found.needed:
        at, to = op if found.handed_on else found.scan.body.terminator, found.rows[op.result]
        operands = []
        for position, value in enumerate(op.operands):
            if value in made:
                operands.append(made[value])
                continue
            root = found.roots.get(value)
            axis = axis_of_operand(op, position, to)
            if axis is None:
                operands.append(value)
                continue
            write = None if root is None else written_rows(root, axis, change)
            if write is not None:
                operands.append(rw.typed(write.to_window, value.aval, write.value, before=at))
            else:
                source = value if root is None else root.next
                operands.append(_part(source, axis, change, at, rw))
        shape = [change.size if a == to else n for a, n in enumerate(op.result.shape)]
        made[op.result] = on_others(op, operands, rw, before=at, params=of_shape(op, shape))
    return made


def _part(value: Value, axis: int, change: Change, at: Op, rw: Rewriter) -> Value:
    """Those of the rows along an axis that change."""

    def code(array: jax.Array, *index: jax.Array) -> jax.Array:
        return read_run(array, _first(change, *index), change.size, axis)

    return rw.typed(code, value.aval, value, *_index(change), before=at)


def _put(
    found: MappedCarries, change: Change, old: Value, rows: Value, axis: int, at: Op, rw: Rewriter
) -> Value:
    """All rows, with those that change."""
    if found.shift is not None:
        return rw.typed(partial(_shifted, found.shift, axis), old.aval, old, rows, before=at)

    def code(array: jax.Array, rows: jax.Array, *index: jax.Array) -> jax.Array:
        return write_run(array, rows, _first(change, *index), axis)

    return rw.typed(code, old.aval, old, rows, *_index(change), before=at)


def _shifted(shift: Shift, axis: int, old: jax.Array, rows: jax.Array) -> jax.Array:
    """Rows that move to one end, and others at the other."""
    first = shift.size if shift.climbs else 0
    kept = lax.slice_in_dim(old, first, first + shift.held - shift.size, axis=axis)
    return lax.concatenate([kept, rows] if shift.climbs else [rows, kept], axis)


def _index(change: Change) -> tuple[Value, ...]:
    return (change.start,) if isinstance(change.start, Value) else ()


def _first(change: Change, *index: jax.Array) -> Any:
    """The first row that changes."""
    if not index:
        return change.start
    if change.component is None:
        return index[0]
    flat = lax.reshape(index[0], (index[0].size,))
    return lax.reshape(lax.slice(flat, (change.component,), (change.component + 1,)), ())
