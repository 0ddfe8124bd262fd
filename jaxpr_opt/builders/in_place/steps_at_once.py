"""A loop whose steps each take several steps of another loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import lax

from jaxpr_opt.bridge.slicing import write_row
from jaxpr_opt.builders.steps.step_rows import row_at
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def take_at_once(scan: Scan, count: int, rw: Rewriter) -> None:
    """Replace a loop by one whose steps each take so many of its steps; what is left follows it.

    Rows of streams are read, and rows of stacks written, where they are: cutting off the rows of
    the steps that are left would copy all others.
    """
    rounds, size, onward = scan.length // count, scan.num_carries, -1 if scan.reverse else 1
    rows = range(scan.length)[::onward]
    first = rw.scalar(rows[0], np.int32)
    buffers = [rw.undefined(stack.result.aval, before=scan) for stack in scan.stacks]
    inits = [first, *scan.operands[:size], *buffers]
    names = ["row", *(carry.param.name for carry in scan.carries), *("rows" for _ in buffers)]
    params = [rw.new_value(v.aval, name) for v, name in zip(inits, names, strict=True)]
    body = rw.new_region(params)
    row, values, end = body.params[0], list(body.params[1:]), body.terminator
    for _ in range(count):
        values = _step(scan, row, values, end, rw)
        row = rw.insert(lambda i: lax.add(i, np.int32(onward)), row, before=end)
    rw.set_outputs(body, [row, *values])
    loop = rw.new_scan(body, inits, (), (), length=rounds, reverse=False, like=scan, before=scan)
    rw.set_scan(loop, unroll=1)
    values = list(loop.results[1:])
    for number in rows[rounds * count :]:
        values = _step(scan, rw.scalar(number, np.int32), values, scan, rw)
    for old, new in zip(scan.results, values, strict=True):
        rw.replace(old, new)
    rw.erase(scan)


def _step(scan: Scan, row: Value, values: Sequence[Value], before: Op, rw: Rewriter) -> list[Value]:
    """Take the step of a row, given carries and the arrays that stacks are written to; return what
    these become.
    """
    size = scan.num_carries
    mapping = dict(zip(scan.body.params, values[:size], strict=False))
    for stream in scan.streams:
        if stream.param.uses:
            mapping[stream.param] = row_at(stream, row, scan, before, rw)
    rw.clone([op for op in scan.body.ops if not op.is_terminator], mapping, before)
    outputs = [mapping.get(value, value) for value in scan.body.outputs]
    stacked = zip(values[size:], outputs[size:], strict=True)
    written = [rw.typed(write_row, v.aval, v, new, row, before=before) for v, new in stacked]
    return [*outputs[:size], *written]
