"""How much memory a program holds at once, if its ops run in program order.

An estimate to compare two programs by, not a prediction of XLA's buffers: nothing is fused, except
that what is merely spread out (a broadcast, an iota, an unspecified value) takes no room, and that
a buffer written in place or carried by a loop takes the room of the operand that ends there.
"""

from __future__ import annotations

from jaxpr_opt.ir import Constant, Graph, Op, Region, Scan, Value, While
from jaxpr_opt.traits import spreads

IN_PLACE = frozenset({"dynamic_update_slice", "scatter", "scatter-add", "scatter-mul"})
"""The first operand becomes the result where nobody else reads it."""


def peak_bytes(graph: Graph) -> int:
    """The most bytes live at one moment, arguments included: they stay the caller's."""
    return sum(v.nbytes for v in graph.inputs) + _peak(graph.body)


def last_uses(region: Region) -> dict[Value, Op]:
    """For every value read in a region or deeper: the last op of the region that reads it."""
    last: dict[Value, Op] = {}
    for op in region.ops:
        for each in op.walk():
            last.update(dict.fromkeys(each.operands, op))
    return last


def _peak(region: Region) -> int:
    """The most that the values defined in the region take, with what runs inside their ops."""
    last = last_uses(region)
    ending: dict[Op, list[Value]] = {}
    for value, op in last.items():
        if not isinstance(value, Constant) and value.region is region and value.op is not None:
            ending.setdefault(op, []).append(value)
    live = peak = 0
    for op in region.ops:
        dying = ending.get(op, [])
        live += sum(_bytes(v) for v in op.results) - sum(_bytes(v) for v in _reused(op, dying))
        peak = max(peak, live + max((_entry(r) + _peak(r) for r in op.regions), default=0))
        live -= sum(_bytes(v) for v in dying) - sum(_bytes(v) for v in _reused(op, dying))
        live -= sum(_bytes(v) for v in op.results if v not in last)
    return peak


def _bytes(value: Value) -> int:
    return 0 if value.op is not None and spreads(value.op) else value.nbytes


def _reused(op: Op, dying: list[Value]) -> list[Value]:
    """Dying operands whose room the results take over."""
    if op.name in IN_PLACE:
        return [v for v in op.operands[:1] if v in dying]
    if isinstance(op, Scan | While):
        return [c.init for c in op.carries if c.init in dying]
    return []


def _entry(region: Region) -> int:
    """What entering a region takes: the rows of a scan's streams; carries live in the results."""
    owner = region.owner
    return sum(s.param.nbytes for s in owner.streams) if isinstance(owner, Scan) else 0
