"""How much memory a program holds at once, if its ops run in program order.

An estimate to compare two programs by, not a prediction of XLA's buffers: nothing is fused, except
that what is merely spread out (a broadcast, an iota, an unspecified value) takes no room, that a
view of an array (a reshape) takes none beside the array, and that a buffer written in place or
carried by a loop takes the room of the operand that ends there.

`peak_bytes` is the most of it, `jaxpr_opt.insight.timeline` all of it; both add up `moments`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from jaxpr_opt.cost.reuse import buffer_of, is_view
from jaxpr_opt.engine.ir import Constant, Graph, Op, Region, Scan, Value, While
from jaxpr_opt.engine.traits import IN_PLACE, spreads


class Moment(NamedTuple):
    """An op of a region, and what it does to the memory that the region's own values take."""

    op: Op
    made: tuple[Value, ...]
    """Its results: live while it runs."""
    taken: tuple[Value, ...]
    """Operands that end here and whose room the results take over: not live beside them."""
    freed: tuple[Value, ...]
    """What nobody reads from here on: live while the op runs, and no longer."""


def peak_bytes(graph: Graph) -> int:
    """The most bytes live at one moment, arguments included: they stay the caller's."""
    return room(graph.inputs) + _peak(graph.body)


def temporary_bytes(graph: Graph) -> int:
    """The most bytes live at one moment beside the arguments and the results, which XLA makes room
    for from the start.
    """
    return _peak(graph.body, {buffer_of(value) for value in graph.outputs})


def last_uses(region: Region) -> dict[Value, Op]:
    """For every value read in a region or deeper, also as a view: the last op of the region that
    reads it.
    """
    last: dict[Value, Op] = {}
    for op in region.ops:
        for each in op.walk():
            last.update(dict.fromkeys(each.operands, op))
            last.update((buffer_of(value), op) for value in each.operands)
    return last


def moments(region: Region) -> Iterator[Moment]:
    """What each op of a region makes and ends, in program order; regions inside it are not told."""
    last = last_uses(region)
    ending: dict[Op, list[Value]] = {}
    for value, op in last.items():
        if not isinstance(value, Constant) and value.region is region and value.op is not None:
            ending.setdefault(op, []).append(value)
    for op in region.ops:
        dying = ending.get(op, [])
        taken = _taken(op, set(dying))
        freed = [v for v in dying if v not in taken] + [v for v in op.results if v not in last]
        yield Moment(op, op.results, tuple(taken), tuple(freed))


def room(values: Iterable[Value]) -> int:
    """The bytes that values take while they are live."""
    return sum(v.nbytes for v in values if v.op is None or not (spreads(v.op) or is_view(v.op)))


def rows(region: Region) -> tuple[Value, ...]:
    """What is live throughout a region beside its ops' results: the rows of a scan's streams.

    Carries live in the results of their loop.
    """
    owner = region.owner
    return tuple(s.param for s in owner.streams) if isinstance(owner, Scan) else ()


def _peak(region: Region, apart: Set[Value] = frozenset()) -> int:
    """The most that the values defined in the region take, but for some, with what runs inside
    their ops.
    """
    live = peak = 0
    for op, *changes in moments(region):
        made, taken, freed = (room(v for v in values if v not in apart) for values in changes)
        live += made - taken
        peak = max(peak, live + max((room(rows(r)) + _peak(r) for r in op.regions), default=0))
        live -= freed
    return peak


def _taken(op: Op, dying: Set[Value]) -> dict[Value, None]:
    """Dying operands whose room the results take over, in order."""
    operands: Iterable[Value] = ()
    if op.name in IN_PLACE:
        operands = op.operands[:1]
    elif isinstance(op, Scan | While):
        operands = (carry.init for carry in op.carries)
    return dict.fromkeys(v for v in map(buffer_of, operands) if v in dying)
