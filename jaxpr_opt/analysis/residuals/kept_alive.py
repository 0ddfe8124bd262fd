"""Arrays that are in memory only as long as something other than a recomputed residual needs them.

What readers of residuals have anyway costs nothing to read again, if it is still there. An array of
which the last reader has run gives its memory to later results. To recompute a residual from it
keeps it in memory as long as the residual itself would be, so it has the price of storing it.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxpr_opt.analysis.residuals.cuts import Residual, available, outermost
from jaxpr_opt.analysis.residuals.stack_consumers import Rows, routes
from jaxpr_opt.cost.reuse import buffer_of, uses_of
from jaxpr_opt.ir.graph import Constant, Op, Region, Scan, Value
from jaxpr_opt.ir.traits import is_broadcast


def gone_before_readers(scan: Scan, found: Iterable[Residual]) -> set[Value]:
    """The rows of a step of arrays that nothing needs any more when the residuals are read."""
    found = list(found)
    region = outermost(scan, found).region
    assert region is not None
    readers = _readers(region, found)
    arrays = {s.param: s.operand for s in scan.streams} | dict(available(scan))
    return {row for row, array in arrays.items() if _is_gone(array, region, readers)}


def _readers(region: Region, found: Iterable[Residual]) -> list[Op]:
    """The ops of a region that read residuals."""
    ends = {
        end.scan
        for stack, _ in found
        for route, _ in routes(stack.result, nests=True) or ()
        if isinstance(end := route[-1], Rows)
    }
    return [op for op in map(region.ancestor, ends) if op is not None]


def _is_gone(array: Value, region: Region, readers: Iterable[Op]) -> bool:
    """Whether no use of an array that is made in a region is as late as the readers are."""
    array = buffer_of(array)
    maker = array.op
    if isinstance(array, Constant) or maker is None or is_broadcast(maker):
        return False
    if array.region is not region:
        return False
    first = min(map(region.order, readers), default=0)
    users = (region.ancestor(use.op) for use in uses_of(array))
    last = max((region.order(op) for op in users if op is not None), default=0)
    return last < first
