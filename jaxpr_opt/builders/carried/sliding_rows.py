"""Carry, stream and stack the rows of a window that slides over a carried buffer, in its place."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp

from jaxpr_opt.analysis.carried.buffers import Buffer
from jaxpr_opt.analysis.carried.sliding import Window
from jaxpr_opt.analysis.carried.sliding_costs import is_partly_written
from jaxpr_opt.analysis.values.constants import is_weak, strong, uniform
from jaxpr_opt.analysis.values.renaming import is_noop_cast
from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.bridge.parameters import broadcast_dimensions_of, padding_of
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Op, Scan, Stack, Stream, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS


def slide(scan: Scan, found: Buffer, window: Window, rw: Rewriter) -> None:
    """Replace the buffer in each step by the rows of the window that slides over it."""
    carry = found.carry
    init = rw.insert(strong, carry.init, before=scan) if is_weak(carry.init) else carry.init
    number = (
        uniform(init)
        if is_partly_written(found, window.axis)
        else _number(init, window.axis, window.incoming)
    )
    entering, streams = _entering(scan, init, number, window, rw)
    kept = list(rw.insert_many(window.kept_rows, init, before=scan)) if window.kept else []
    params = [rw.new_value(v.aval) for v in kept]
    rows = [*params, *entering] if window.climbs else [*entering, *params]
    rows = _scalarised(found, window, rows, rw)
    split = window.entering if window.climbs else window.kept
    leaving, staying = (
        (rows[:split], rows[split:]) if window.climbs else (rows[split:], rows[:split])
    )
    end, after = scan.body.terminator, scan.next
    if window.entering > 1:
        leaving = [rw.insert(lambda *rows: jnp.stack(rows), *leaving, before=end)]
    left = [Stack(v, rw.new_value(rw.stacked_aval(v, scan.length))) for v in leaving]
    results = [rw.new_value(v.aval) for v in kept]
    if carry.result.uses:
        assert after is not None
        whole = rw.typed(
            window.result,
            carry.result.aval,
            init,
            *(s.result for s in left),
            *results,
            before=after,
        )
        rw.replace(carry.result, whole)
    others = [c for c in scan.carries if c.param is not carry.param]
    rw.set_scan(
        scan,
        carries=[*others, *map(Carry, kept, params, staying, results)],
        streams=[*scan.streams, *streams],
        stacks=[*scan.stacks, *left],
    )
    for op in reversed(found.ops):
        rw.erase(op)


def _entering(
    scan: Scan, init: Value, number: Any, window: Window, rw: Rewriter
) -> tuple[list[Value], list[Stream]]:
    """The rows that enter the window in a step, and the stream that brings them."""
    if not window.entering:
        return [], []
    first = scan.body.first
    assert first is not None
    if number is not None:
        shape = window.block(init.shape)
        row = rw.insert(lambda: jnp.full(shape, number, init.dtype), before=first)
        return [row] * window.entering, []
    blocks = rw.insert(window.entering_rows, init, before=scan)
    param = rw.new_value(rw.row_aval(blocks))
    rows = [param] if window.entering == 1 else rw.insert_many(list, param, before=first)
    return list(rows), [Stream(blocks, param)]


@remembered
def _number(array: Value, axis: int, rows: range) -> Any:
    """The number that all these rows of an array along an axis are known to be, else None: what is
    written to others before the loop, or added to them, does not matter.
    """
    while (op := array.op) is not None:
        written = access(op)
        if op.name in SUMS:
            numbers = [_number(operand, axis, rows) for operand in op.operands]
            return numbers[0] if all(n is not None and n == 0 for n in numbers) else None
        if op.name == "pad":
            low, _, between = padding_of(op)[axis]
            if between or not _are_apart(rows, low, op.operands[0].shape[axis]):
                return None
            return uniform(op.operands[1])
        if written is not None and written.kind != "read":
            extent = written.window[axis]
            if extent.start is None or not extent.start.is_constant:
                break
            if not _are_apart(rows, extent.start.offset, extent.size):
                break
        elif op.name == "broadcast_in_dim" and _is_kept(op, axis):
            axis = broadcast_dimensions_of(op).index(axis)
        elif not is_noop_cast(op):
            break
        array = op.operands[0]
    return uniform(array)


def _are_apart(rows: range, start: int, size: int) -> bool:
    """Whether no row is one of so many from a start on."""
    return rows.stop <= start or start + size <= rows.start


def _is_kept(spread: Op, axis: int) -> bool:
    """Whether an axis of a broadcast is one of its operand, as it was."""
    dims, (array,) = broadcast_dimensions_of(spread), spread.operands[:1]
    return axis in dims and array.shape[dims.index(axis)] == spread.result.shape[axis]


def _scalarised(found: Buffer, window: Window, rows: list[Value], rw: Rewriter) -> list[Value]:
    """Read and write the rows instead of the buffer; the rows at the end of the step."""
    rows_of = {found.carry.param: rows}
    accesses = {each.op: each for each in found.accesses}
    for op in found.ops:
        current = rows_of[op.operands[0]]
        each = accesses.get(op)
        if each is None:
            rows_of[op.result] = current
            continue
        touched = window.pieces(each)
        if each.kind == "read":
            old = [current[k] for k in touched]
            read = rw.typed(
                partial(window.read, each), op.result.aval, *old, *each.indices, before=op
            )
            rw.replace(op.result, read)
            continue
        new = list(current)
        for number, k in enumerate(touched):
            write = partial(window.written, each, number)
            new[k] = rw.insert(write, current[k], each.value, *each.indices, before=op)
        rows_of[op.result] = new
    return rows_of[found.carry.next]
