"""How much memory a program holds at once, if its ops run in program order.

An estimate to compare two programs by: what is merely spread out (a broadcast, an iota, an
unspecified value) takes no room, a view of an array (a reshape) takes none beside the array, and a
buffer written in place or carried by a loop takes the room of the operand that ends there.

`peak_bytes` is the most at any time, `jaxpr_opt.insight.timeline` shows all times; both add up
`moments`, in which nothing is fused.  `jaxpr_opt.insight.temporaries` predicts what XLA needs
beside arguments and results: it adds up `fused_moments`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from jaxpr_opt.analysis.liveness.fused import Read, fused
from jaxpr_opt.analysis.liveness.scheduled import Run, scheduled
from jaxpr_opt.cost.layouts import Copy, shape_made, shape_read
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.reuse import buffer_of, is_view
from jaxpr_opt.ir.graph import Constant, Graph, Op, Region, Scan, Value, While
from jaxpr_opt.ir.traits import ELEMENTWISE, IN_PLACE, SCATTERING, is_broadcast, is_foreign


class Moment(NamedTuple):
    """An op of a region, and what it does to the memory that the region's own values take."""

    op: Op
    made: tuple[Value, ...]
    """Its results: live while it runs."""
    taken: tuple[Value, ...]
    """Operands that end here and whose room the results take over: not live beside them."""
    freed: tuple[Value, ...]
    """What nobody reads from here on: live while the op runs, and no longer."""
    copy: Copy | None = None
    """The copy of an operand that is made instead of its results."""
    done: Sequence[Copy] = ()
    """Copies that nobody reads from here on."""
    over: Value | None = None
    """What the result is written over, if both are in the room of a result."""


def peak_bytes(graph: Graph) -> int:
    """The most bytes live at one moment, arguments included: they stay the caller's."""
    return room(graph.inputs) + _peak(graph.body)


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
    """The values that each op of a region makes and ends, in program order, without regions inside
    it.
    """
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


def fused_moments(region: Region, outer: Iterable[Value]) -> Iterator[Moment]:
    """The same of a program that XLA has fused, in the order in which it runs it: what is computed
    inside of other ops is left out.  Some outer values may be read here last.

    A fusion may write what it computes over an array that ends there.  What a step writes over what
    its loop carries is left out, too: it lives in the result of the loop.
    """
    found = fused(region.terminator)
    runs = list(scheduled(region, found))
    last = {array: place for place, run in enumerate(runs) for array in run.read}
    ending: dict[int, list[Value]] = {}
    own = {value for op in region.ops for value in op.results}.union(fused_rows(region), outer)
    for value, place in last.items():
        if value in own:
            ending.setdefault(place, []).append(value)
    carried = _carried(region, runs)
    for place, (op, copy, read, done) in enumerate(runs):
        dying = ending.get(place, [])
        taken, made, over = dict[Value, None](), tuple[Value, ...](), None
        if copy is None:
            taken = _taken(op, set(dying))
            if not taken and (over := _overwritten(op, read, dying)) and not _is_shared(over):
                taken, over = {over: None}, None
            carried |= {value for value in op.results if _place(value, taken) in carried}
            made = tuple(v for v in op.results if v not in found.inside and v not in carried)
        freed = [v for v in dying if v not in taken] + [v for v in made if v not in last]
        yield Moment(op, made, tuple(taken), tuple(freed), copy, done, over)


def is_filled_first(value: Value) -> bool:
    """Whether a result has its memory from the start of the region that its op is in: what steps
    stack is cleared, and what a loop or a scatter starts with is copied, as soon as it is there.
    """
    op = value.op
    if op is None or not cost_model().is_breadth_first:
        return False
    if op.name in SCATTERING:
        base = buffer_of(op.operands[0])
        return base.op is not None and is_broadcast(base.op)
    if not isinstance(op, Scan | While):
        return False
    if isinstance(op, Scan) and any(stack.result is value for stack in op.stacks):
        return True
    init = next(carry.init for carry in op.carries if carry.result is value)
    return init.op is None or is_broadcast(init.op)


def _place(value: Value, taken: Iterable[Value]) -> Value | None:
    """Of arrays whose room the results of an op take over, that which a result takes over."""
    before = written_over(value)
    places = (array for array in taken if before is None or array is before)
    return next((array for array in places if array.nbytes == value.nbytes), None)


def _carried(region: Region, runs: Sequence[Run]) -> set[Value]:
    """The next values that a step writes over the carries that it started with."""
    place: dict[Op | None, int] = {run.op: i for i, run in enumerate(runs)}
    owner = region.owner
    if not isinstance(owner, Scan | While) or region is not owner.regions[-1]:
        return set()
    read = dict[Value, tuple[int, bool]]()
    for i, run in enumerate(runs[:-1]):
        read |= {array: (i, same) for array, same in run.read.items()}
    over = set[Value]()
    for carry in owner.carries:
        value, (last, same) = buffer_of(carry.next), read.get(carry.param, (-1, False))
        while (before := written_over(value)) is not None and before.op in place:
            if read[before][0] != place[value.op]:
                break
            value = before
        made, fits = place.get(value.op, -1), same and value.nbytes == carry.param.nbytes
        if made > last or (made == last >= 0 and (fits or before is carry.param)):
            over.add(value)
    return over


def written_over(value: Value) -> Value | None:
    """The value whose room another is made in, if it ends there."""
    op = value.op
    if op is None:
        return None
    if op.name in IN_PLACE:
        return buffer_of(op.operands[0])
    if op.name == "sort":
        return buffer_of(op.operands[value.position])
    if isinstance(op, Scan | While):
        is_carried = isinstance(op, While) or value.position < op.num_carries
        return buffer_of(op.operands[value.position]) if is_carried else None
    if is_foreign(op):
        return next((buffer_of(each) for each in op.operands if each.aval == value.aval), None)
    return None


def _overwritten(op: Op, arrays: Read, dying: Sequence[Value]) -> Value | None:
    """The array that an elementwise op may write its result over, if there is one, also with axes
    that are moved and moved back: what a region of an op only yields has a place of its own.
    """
    if op.name not in ELEMENTWISE and op.name != "transpose":
        return None
    if isinstance(op.parent, Op) and all(user.is_terminator for user in op.result.users):
        return None
    shape, nbytes = _shape(op.result), op.result.nbytes
    fitting = (v for v in dying if arrays[v] and v.nbytes == nbytes and _shape(v) == shape)
    return next(fitting, None)


def _is_shared(value: Value) -> bool:
    """Whether an array is in a buffer with others, as what a loop hands on from step to step, and
    what is written in place: XLA's heap of temporary buffers writes over no such buffer.
    """
    op = value.op
    return op is not None and (bool(op.regions) or op.name in IN_PLACE)


def _shape(value: Value) -> tuple[int, ...]:
    """The shape in which a value is in memory: that in which a product makes it, or reads it."""
    read = (shape_read(use.op, value) for use in value.uses)
    return next((shape for shape in read if shape != value.shape), shape_made(value))


def room(values: Iterable[Value]) -> int:
    """The bytes that values take while they are live."""
    return sum(
        v.nbytes for v in values if v.op is None or not (is_broadcast(v.op) or is_view(v.op))
    )


def rows(region: Region) -> tuple[Value, ...]:
    """The rows of a scan's streams: live throughout its region.

    Carries live in the results of their loop.
    """
    owner = region.owner
    return tuple(s.param for s in owner.streams) if isinstance(owner, Scan) else ()


def fused_rows(region: Region) -> Iterator[Value]:
    """The same of a program that XLA has fused."""
    inside = fused(region.terminator).inside
    return (row for row in rows(region) if row not in inside)


def _peak(region: Region) -> int:
    """The most that the values defined in the region take, with what runs inside their ops."""
    live = peak = room(rows(region))
    for op, *changes, _, _, _ in moments(region):
        made, taken, freed = map(room, changes)
        live += made - taken
        peak = max(peak, live + max(map(_peak, op.regions), default=0))
        live -= freed
    return peak


def _taken(op: Op, dying: Set[Value]) -> dict[Value, None]:
    """Dying operands whose room the results take over, in order."""
    return {v: None for v in map(written_over, op.results) if v in dying and v is not None}
