"""Divide the steps of a loop between a loop and another one around it."""

from __future__ import annotations

from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.rewriter import Rewriter


def split(scan: Scan, length: int, rw: Rewriter) -> Scan:
    """Replace a loop by a nest whose inner loop takes the given number of steps; return the outer
    loop.
    """
    count, times = scan.num_carries, scan.length // length
    rows = [
        rw.reshape(s.operand, (times, length, *s.operand.shape[1:]), before=scan)
        for s in scan.streams
    ]
    outer_body = rw.new_region([*(c.param for c in scan.carries)])
    for array in rows:
        rw.add_param(outer_body, rw.new_value(rw.row_aval(array)))
    results = scan.results
    values = scan.body.outputs[count:]
    inner = rw.new_scan(
        rw.detach_region(scan),
        outer_body.params[:count],
        outer_body.params[count:],
        [rw.stacked_aval(v, length) for v in values],
        length=length,
        reverse=scan.reverse,
        like=scan,
        before=outer_body.terminator,
    )
    rw.set_outputs(outer_body, inner.results)
    outer = rw.new_scan(
        outer_body,
        scan.operands[:count],
        rows,
        [rw.stacked_aval(v, times) for v in inner.results[count:]],
        length=times,
        reverse=scan.reverse,
        like=scan,
        before=scan,
    )
    for old, new in zip(results[:count], outer.results[:count], strict=True):
        rw.replace(old, new)
    for old, new in zip(results[count:], outer.results[count:], strict=True):
        rw.replace(old, rw.reshape(new, old.shape, before=scan))
    rw.erase(scan)
    return outer
