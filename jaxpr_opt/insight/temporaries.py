"""How much temporary memory XLA needs for a program: the buffers beside arguments and results.

XLA makes room for the results from the start.  So a temporary buffer lives in the room of a result,
if that is as large, and is written after the buffer's last read.  XLA gives rooms to the largest
buffers first, and each the smallest room that it fits into.  A result that is written over a
donated argument leaves no room: most programs read the argument late.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from itertools import accumulate

from jaxpr_opt.cost.fusion import is_fused
from jaxpr_opt.cost.layouts import Copy
from jaxpr_opt.cost.limits import LEAST_BUFFER
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.reuse import buffer_of
from jaxpr_opt.insight.liveness import (
    Moment,
    fused_moments,
    fused_rows,
    is_filled_first,
    room,
    written_over,
)
from jaxpr_opt.ir.graph import Graph, Op, Region, Remat, Scan, Value, While


def temporary_bytes(graph: Graph) -> int:
    """The most bytes live at one moment in buffers that are in no result's room."""
    recorder = _Recorder({buffer_of(value) for value in graph.outputs if value.op is not None})
    recorder.region(graph.body, frozenset(recorder.results))
    rooms = recorder.rooms(graph.inputs[i] for i in graph.given_up)
    return _peak(_outside(recorder.buffers, rooms))


@dataclass(slots=True, eq=False)
class _Buffer:
    """Bytes that are live from one moment to before another."""

    nbytes: int
    start: int
    end: int = 0
    over: _Buffer | None = None
    """The one that it is written over, in the room of a result."""
    beside: tuple[_Buffer, ...] = ()
    """Those that the same value is in, too."""

    def is_apart(self, other: _Buffer) -> bool:
        """Whether both may live in one room."""
        first, last = (self, other) if self.start < other.start else (other, self)
        return first.end <= last.start or (last.over is first and first.end == last.start + 1)


@dataclass(slots=True, eq=False)
class _Room:
    """The room of a result, until that is written."""

    nbytes: int
    until: int
    taken: list[_Buffer] = field(default_factory=list)
    """Buffers that live there."""

    def is_free(self, buffer: _Buffer) -> bool:
        """Whether a buffer that is no larger fits."""
        return buffer.end <= self.until and all(map(buffer.is_apart, self.taken))


class _Recorder:
    """Runs a program, and notes when each buffer is live."""

    def __init__(self, results: set[Value]) -> None:
        self.results = results
        self.now = 0
        self.buffers: list[_Buffer] = []
        self.live: dict[Value | Copy, _Buffer] = {}
        self.written: dict[Value, int] = {}

    def rooms(self, donated: Iterable[Value]) -> list[_Room]:
        """The rooms of the results, but for those that are written over a donated argument."""
        taken = Counter(value.aval for value in donated)
        rooms = list[_Room]()
        for value, until in self.written.items():
            if taken[value.aval]:
                taken[value.aval] -= 1
            else:
                rooms.append(_Room(value.nbytes, until))
        return rooms

    def region(self, region: Region, apart: Set[Value], outer: Iterable[Value] = ()) -> None:
        """What a region makes, but for some values; some outer ones are read there last."""
        model, present = cost_model(), list(fused_rows(region))
        self.open(present, apart)
        apart = apart | _stacked(region)
        moments = list(fused_moments(region, outer))
        early = [value for moment in moments for value in moment.made if is_filled_first(value)]
        self.open(early, apart)
        self.written |= dict.fromkeys(self.results.intersection(early), self.now)
        turns, between = _in_turns(moments), dict[Op, list[_Buffer]]()
        for moment in moments:
            op, made, taken, freed, copy, done, over = moment
            for ready in turns.get(op, ()) if copy is None else ():
                sizes = model.scratch_between(ready)
                between[ready] = [_Buffer(nbytes, self.now) for nbytes in sizes]
            self.result(moment)
            self.close(taken)
            is_loop = isinstance(op, Scan | While)
            if copy is not None:
                self.live[copy] = _Buffer(copy.nbytes, self.now)
            elif scratch := model.scratch(op):
                held = between.get(op, [])
                rest = scratch - sum(buffer.nbytes for buffer in held)
                for buffer in (*held, _Buffer(rest, self.now)):
                    self.end(buffer, self.now + 1)
            if is_loop or not op.regions:
                self.open(made, apart)
            if over in self.live and op.results[0] in self.live:
                self.live[op.results[0]].over = self.live[over]
            for each in op.regions:
                self.region(each, _apart(op, each, apart), freed if isinstance(op, Remat) else ())
            self.now += 1
            if op.regions and not is_loop:
                self.open(made, apart)
                self.now += 1
            self.close((*freed, *done))
        self.close(present)

    def result(self, moment: Moment) -> None:
        """Note when results are written; one that is written over another array, when that was."""
        for value in moment.made:
            if value not in self.results or value in self.written:
                continue
            before = written_over(value)
            earlier = self.live.pop(before, None) if before in moment.taken else None
            self.written[value] = self.now if earlier is None else earlier.start

    def open(self, values: Iterable[Value], apart: Set[Value]) -> None:
        """Values are made now."""
        model = cost_model()
        for value in values:
            if value not in apart and value not in self.live and room([value]):
                nbytes, *others = model.made(value)
                beside = tuple(_Buffer(each, self.now) for each in others)
                self.live[value] = _Buffer(nbytes, self.now, beside=beside)

    def close(self, values: Iterable[Value | Copy]) -> None:
        """Values, and copies of some, are not read any more."""
        for value in values:
            buffer = self.live.pop(value, None)
            if buffer is not None and buffer.start < self.now:
                for each in (buffer, *buffer.beside):
                    self.end(each, self.now)

    def end(self, buffer: _Buffer, now: int) -> None:
        """A buffer is live until before a moment."""
        buffer.end = now
        self.buffers.append(buffer)


def _in_turns(moments: Iterable[Moment]) -> dict[Op, list[Op]]:
    """Ops that run in turns, a loop of each, by the first of them."""
    found, ready, model = dict[Op, list[Op]](), list[Op](), cost_model()
    for moment in moments:
        if moment.copy is not None:
            continue
        if not model.scratch_between(moment.op):
            ready = []
            continue
        ready.append(moment.op)
        found.setdefault(ready[0], ready)
    return found


def _outside(buffers: list[_Buffer], rooms: list[_Room]) -> Iterator[_Buffer]:
    """The buffers that live in no room."""
    rooms = sorted(rooms, key=lambda each: (each.nbytes, each.until))
    sizes = [each.nbytes for each in rooms]
    last = max((each.until for each in rooms), default=0)
    least = LEAST_BUFFER * _peak(buffers)
    for buffer in sorted(buffers, key=lambda each: (-each.nbytes, each.start)):
        may_fit = buffer.end <= last and buffer.nbytes >= least
        fitting = rooms[bisect_left(sizes, buffer.nbytes) :] if may_fit else []
        found = next((each for each in fitting if each.is_free(buffer)), None)
        if found is None:
            yield buffer
        else:
            found.taken.append(buffer)


def _peak(buffers: Iterable[_Buffer]) -> int:
    """The most bytes of buffers that are live at one moment."""
    changes = [c for b in buffers for c in ((b.end, -b.nbytes), (b.start, b.nbytes))]
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def _apart(op: Op, region: Region, apart: Set[Value]) -> Set[Value]:
    """The outputs of a region that become results of its op which are not to be counted."""
    if isinstance(op, Scan | While) or apart.isdisjoint(op.results):
        return frozenset()
    both = zip(region.outputs, op.results, strict=False)
    return {buffer_of(value) for value, result in both if result in apart}


def _stacked(region: Region) -> Set[Value]:
    """The values that a step computes element by element and only stacks: each is written where it
    belongs.
    """
    owner = region.owner
    if not isinstance(owner, Scan):
        return frozenset()
    values = {buffer_of(stack.value) for stack in owner.stacks}
    return {v for v in values if len(v.uses) == 1 and v.op is not None and is_fused(v.op)}
