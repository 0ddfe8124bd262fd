"""A loop without a stack of which the last row is read, or a stream of zeros but for one row."""

from __future__ import annotations

from functools import partial
from typing import Any

from jax import lax

from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.analysis.windows.last_rows import FirstRow, LastRow
from jaxpr_opt.bridge.slicing import read_window
from jaxpr_opt.ir.graph import Carry, Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def only_row(found: LastRow, scan: Scan, rw: Rewriter) -> None:
    """Give the readers of a stack the row of the last step."""
    after = scan.next
    assert after is not None
    value = found.stack.value
    if found.after is None:
        carry = _carried(value, scan, rw)
        value = carry.result
    else:
        ends = {c.next: c.result for c in scan.carries}
        last = 0 if scan.reverse else scan.length - 1
        for stream in scan.streams:
            if stream.param is value or any(stream.param in op.operands for op in found.after):
                ends[stream.param] = _row(stream.operand, last, after, rw)
        value = rw.clone(found.after, ends, after)[value]
    row = rw.reshape(value, (1, *value.shape), before=after)
    for read in found.reads:
        part = partial(_part, read)
        made = rw.typed(part, read.op.result.aval, row, *read.indices, before=read.op)
        rw.replace(read.op.result, made)
        rw.erase(read.op)
    rw.set_scan(scan, stacks=[s for s in scan.stacks if s.result is not found.stack.result])


def started(found: FirstRow, scan: Scan, rw: Rewriter) -> None:
    """Start a carry with the first row of a stream."""
    first = scan.length - 1 if scan.reverse else 0
    row = _row(found.stream.operand, first, scan, rw)
    old = found.carry
    init = rw.typed(lax.add, old.init.aval, old.init, row, before=scan)
    rw.replace(found.plus.result, old.param)
    rw.erase(found.plus)
    carries = [c._replace(init=init) if c.param is old.param else c for c in scan.carries]
    streams = [s for s in scan.streams if s.param is not found.stream.param]
    rw.set_scan(scan, carries=carries, streams=streams)


def _carried(value: Value, scan: Scan, rw: Rewriter) -> Carry:
    """A carry that is a value of the step before, which no step reads."""
    start = rw.undefined(value.aval, before=scan)
    param, result = (rw.new_value(value.aval, value.name) for _ in range(2))
    carry = Carry(start, param, value, result)
    rw.set_scan(scan, carries=[*scan.carries, carry])
    return carry


def _row(array: Value, place: int, before: Op, rw: Rewriter) -> Value:
    return rw.insert(lambda a: lax.index_in_dim(a, place, 0, keepdims=False), array, before=before)


def _part(read: Access, row: Any, *indices: Any) -> Any:
    """What a slice of the last row reads of it."""
    return read_window(row, [0, *read.starts(*indices)[1:]], read.sizes)
