"""A loop without a stack of which the last row is read, or a stream of zeros but for one row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from jax import lax

from jaxpr_opt.analysis.carried.last_rows import FirstRow, LastRow, LastValue
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.bridge.slicing import read_window
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def only_row(found: LastRow, scan: Scan, rw: Rewriter) -> None:
    """Give the readers of a stack the row of the last step."""
    after = scan.next
    assert after is not None
    value = found.stack.value
    if found.after is None:
        carry = rw.carry(scan, rw.undefined(value.aval, before=scan), value.name)
        rw.set_last_next(scan, value)
        value = carry.result
    else:
        value = _computed(value, found.after, scan, rw)
    row = rw.reshape(value, (1, *value.shape), before=after)
    for read in found.reads:
        made = row
        if read.sizes != row.shape:
            part = partial(_part, read)
            made = rw.typed(part, read.op.result.aval, row, *read.indices, before=read.op)
        rw.replace(read.op.result, made)
        rw.erase(read.op)
    rw.set_scan(scan, stacks=[s for s in scan.stacks if s.result is not found.stack.result])


def only_value(found: LastValue, scan: Scan, rw: Rewriter) -> None:
    """Compute a carry that no step reads after the loop."""
    others = [c for c in scan.carries if c.result is not found.carry.result]
    value = _computed(found.carry.next, found.after, scan, rw)
    rw.replace(found.carry.result, value)
    rw.set_scan(scan, carries=others)


def started(found: FirstRow, scan: Scan, rw: Rewriter) -> None:
    """Start carries with what the first step makes of the first row of a stream."""
    first = scan.length - 1 if scan.reverse else 0
    read = {found.stream.param, *(v for op in found.before for v in inputs(op))}
    at_first = {c.param: c.init for c in scan.carries}
    for stream in scan.streams:
        if stream.param in read:
            at_first[stream.param] = _row(stream.operand, first, scan, rw)
    made = rw.clone(found.before, at_first, scan)
    inits = {}
    for plus, carry, term in found.sums:
        inits[carry.param] = rw.typed(lax.add, carry.init.aval, carry.init, made[term], before=scan)
        rw.replace(plus.result, carry.param)
        rw.erase(plus)
    for op in reversed(found.before):
        if not any(result.uses for result in op.results):
            rw.erase(op)
    carries = [c._replace(init=inits.get(c.param, c.init)) for c in scan.carries]
    streams = [s for s in scan.streams if s.param is not found.stream.param]
    rw.set_scan(scan, carries=carries, streams=streams)


def _computed(value: Value, ops: Sequence[Op], scan: Scan, rw: Rewriter) -> Value:
    """The value that a value of the body has in the last step, computed after the loop."""
    after, last = scan.next, 0 if scan.reverse else scan.length - 1
    assert after is not None
    read = {value, *(v for op in ops for v in inputs(op))}
    ends = {c.next: c.result for c in scan.carries}
    for stream in scan.streams:
        if stream.param in read:
            ends[stream.param] = _row(stream.operand, last, after, rw)
    return rw.clone(ops, ends, after).get(value, value)


def _row(array: Value, place: int, before: Op, rw: Rewriter) -> Value:
    return rw.insert(lambda a: lax.index_in_dim(a, place, 0, keepdims=False), array, before=before)


def _part(read: Access, row: Any, *indices: Any) -> Any:
    """The part of the last row that a slice of the stack reads."""
    return read_window(row, [0, *read.starts(*indices)[1:]], read.sizes)
