"""The memory that is live while each op of a program runs; `peak_bytes` is its maximum.

A program runs its ops in order, and those of a loop's body once a step. Every step of a loop finds
the same memory: its stacks are allocated whole from the first step on, its carries take that of one
step. So a loop is one body and a number of times. Of the branches of a cond, the one that takes
most is shown.

Live memory is of three kinds: the arguments, which the caller keeps; residuals, which a forward op
made and a backward op will read; and the rest, which is temporary.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxpr_opt.insight.liveness import moments, room, rows
from jaxpr_opt.insight.saved import Saved, saved
from jaxpr_opt.ir.graph import Cond, Graph, Op, Region, Scan, Value, While

TOLD = 6
"""How many of the values that are live in an instant are named, the largest first."""


class Live(NamedTuple):
    """A value, while it takes room."""

    value: Value
    bytes: int
    residual: Saved | None = None
    """What is known of it if it waits for the backward pass."""


@dataclass(frozen=True, slots=True)
class Instant:
    """An op while it runs."""

    op: Op
    live: int
    """Bytes, those of the arguments included."""
    residual: int
    """Bytes of it that wait for the backward pass."""
    largest: tuple[Live, ...]
    """What takes most of it, arguments apart, the largest first; at most `TOLD`."""
    backward: bool


@dataclass(frozen=True, slots=True)
class Loop:
    """The steps of a `scan` or a `while`: all alike."""

    op: Scan | While
    times: int | None
    """None: as often as a predicate holds."""
    body: tuple[Instant | Loop, ...]
    fills: int = 0
    """Bytes, of residuals that its steps write row by row: whole at the end."""
    drains: int = 0
    """Bytes, of residuals that its steps read row by row, and nobody after it."""


class Tick(NamedTuple):
    """An instant of an unrolled program."""

    instant: Instant
    steps: tuple[int, ...]
    """Which step of each loop around it, outermost first."""
    skipped: bool
    """Whether steps just before it are left out, as they are like those that are shown."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A program's instants in order, loops as one step."""

    arguments: int
    """Bytes the caller holds throughout."""
    spans: tuple[Instant | Loop, ...]

    @property
    def peak(self) -> Instant:
        """The first instant at which most is live: `peak_bytes` of the graph."""
        return max(_instants(self.spans), key=lambda instant: instant.live)

    def unrolled(self, at_most: int, steps: int) -> Iterator[Tick]:
        """Every instant as it comes, loops repeated.

        Of a longer loop `steps` are shown, the first ones and the last; of any loop fewer, but
        one, if it were more than `at_most` instants otherwise.
        """
        fits = (n for n in range(steps, 0, -1) if _count(self.spans, n) <= at_most)
        yield from _unrolled(self.spans, next(fits, 1), ())


def timeline(graph: Graph) -> Timeline:
    """The live values at each moment; ``timeline(graph).peak.live == peak_bytes(graph)``."""
    residuals = {each.value: each for each in saved(graph)}
    arguments = room(graph.inputs)
    walker = _Walker(_backward(graph), residuals)
    return Timeline(arguments, walker.region(graph.body, _Held(arguments)))


def _backward(graph: Graph) -> frozenset[Op]:
    """The ops that compute cotangents: those that JAX transposed, and what they have inside."""
    found: set[Op] = set()
    for op in graph.walk():
        if op.source.transposed or op.parent in found:
            found.add(op)
    return frozenset(found)


@dataclass(slots=True)
class _Held:
    """What is live in a region, on top of what is live around it."""

    live: int = 0
    residual: int = 0
    around: tuple[Live, ...] = ()
    """The largest values around it."""
    values: list[Live] = field(default_factory=list)
    """Those of the region, the largest first."""

    def add(self, each: Live) -> None:
        insort(self.values, each, key=_largest_first)
        self.live += each.bytes
        self.residual += each.bytes if each.residual else 0

    def remove(self, each: Live) -> None:
        self.values.remove(each)
        self.live -= each.bytes
        self.residual -= each.bytes if each.residual else 0

    def largest(self) -> tuple[Live, ...]:
        both = heapq.merge(self.around, self.values[:TOLD], key=_largest_first)
        return tuple(each for each, _ in zip(both, range(TOLD), strict=False) if each.bytes)

    def inside(self) -> _Held:
        return _Held(self.live, self.residual, self.largest())


def _largest_first(each: Live) -> int:
    return -each.bytes


class _Walker:
    def __init__(self, backward: frozenset[Op], residuals: dict[Value, Saved]) -> None:
        self.backward, self.residuals = backward, residuals

    def live(self, value: Value) -> Live:
        return Live(value, room([value]), self.residuals.get(value))

    def waiting(self, values: Iterable[Value]) -> int:
        """The room of those that wait for the backward pass."""
        return room(value for value in values if value in self.residuals)

    def region(self, region: Region, held: _Held) -> tuple[Instant | Loop, ...]:
        for value in rows(region):
            held.add(self.live(value))
        spans: list[Instant | Loop] = []
        for op, made, taken, freed, *_ in moments(region):
            for value in taken:
                held.remove(self.live(value))
            for value in made:
                held.add(self.live(value))
            backward = op in self.backward
            spans.append(Instant(op, held.live, held.residual, held.largest(), backward))
            spans.extend(self.inside(op, held, freed))
            for value in freed:
                held.remove(self.live(value))
        return tuple(spans)

    def inside(self, op: Op, held: _Held, freed: tuple[Value, ...]) -> Sequence[Instant | Loop]:
        """What happens while the regions of an op run."""
        runs = [self.region(region, held.inside()) for region in op.regions]
        match op:
            case Scan():
                written = [stack.result for stack in op.stacks]
                read = {stream.operand for stream in op.streams}.intersection(freed)
                return [Loop(op, op.length, runs[0], self.waiting(written), self.waiting(read))]
            case While():
                return [Loop(op, None, (*runs[0], *runs[1]))]
            case Cond():
                return max(runs, key=lambda run: max(each.live for each in _instants(run)))
            case _:
                return [span for run in runs for span in run]


def _instants(spans: Iterable[Instant | Loop]) -> Iterator[Instant]:
    for span in spans:
        if isinstance(span, Loop):
            yield from _instants(span.body)
        else:
            yield span


UNKNOWN_TIMES = 3
"""How many steps of a `while` are shown."""


def _shown(loop: Loop, steps: int) -> list[int]:
    """The numbers of the steps that are shown."""
    times = UNKNOWN_TIMES if loop.times is None else loop.times
    if times <= steps:
        return list(range(times))
    return [*range(steps - 1), times - 1]


def _count(spans: Iterable[Instant | Loop], steps: int) -> int:
    return sum(
        len(_shown(span, steps)) * _count(span.body, steps) if isinstance(span, Loop) else 1
        for span in spans
    )


def _unrolled(
    spans: Iterable[Instant | Loop], steps: int, around: tuple[int, ...]
) -> Iterator[Tick]:
    for span in spans:
        if isinstance(span, Instant):
            yield Tick(span, around, skipped=False)
            continue
        before = -1
        for number in _shown(span, steps):
            body = _unrolled(span.body, steps, (*around, number))
            for tick in body:
                yield tick._replace(skipped=True) if number > before + 1 else tick
                before = number
