"""What is live while each op of a program runs: the memory that `peak_bytes` is the most of.

A program runs its ops in order, and those of a loop's body once a step.  Every step of a loop finds
the same memory: its stacks take their whole room from the first step on, its carries that of one
step.  So a loop is one body and a number of times, however many steps it takes.  Of the branches of
a cond, the one that takes most is told.

What is live is of three kinds: the arguments, which the caller keeps; residuals, which a forward op
made and a backward op will read; and the rest, which is temporary.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxpr_opt.analysis.liveness import moments, room, rows
from jaxpr_opt.ir import Cond, Graph, Op, Region, Scan, Value, While

TOLD = 6
"""How many of the values that are live in an instant are named, the largest first."""


@dataclass(frozen=True, slots=True)
class Instant:
    """An op while it runs."""

    op: Op
    live: int
    """Bytes, those of the arguments included."""
    residual: int
    """Bytes of it that wait for the backward pass."""
    largest: tuple[Value, ...]
    """What takes most of it, arguments apart, the largest first; at most `TOLD`."""
    backward: bool


@dataclass(frozen=True, slots=True)
class Loop:
    """The steps of a `scan` or a `while`: all alike."""

    op: Scan | While
    times: int | None
    """None: as often as a predicate holds."""
    body: tuple[Instant | Loop, ...]


class Tick(NamedTuple):
    """An instant of an unrolled program."""

    instant: Instant
    steps: tuple[int, ...]
    """Which step of each loop around it, outermost first."""
    skipped: bool
    """Whether steps just before it are left out, as they are like those that are told."""


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

        Of a longer loop `steps` are told, the first ones and the last; of any loop fewer, but
        one, if it were more than `at_most` instants otherwise.
        """
        fits = (n for n in range(steps, 0, -1) if _count(self.spans, n) <= at_most)
        yield from _unrolled(self.spans, next(fits, 1), ())


def timeline(graph: Graph) -> Timeline:
    """What is live when; ``timeline(graph).peak.live == peak_bytes(graph)``."""
    backward = _backward(graph)
    residuals = {
        value
        for op in backward
        for value in op.operands
        if value.op is not None and value.op not in backward
    }
    arguments = room(graph.inputs)
    walker = _Walker(frozenset(backward), frozenset(residuals))
    return Timeline(arguments, walker.region(graph.body, _Held(arguments)))


def _backward(graph: Graph) -> dict[Op, None]:
    """The ops that compute cotangents: those that JAX transposed, and what they have inside."""
    found: dict[Op, None] = {}
    for op in graph.walk():
        if op.source.transposed or op.parent in found:
            found[op] = None
    return found


@dataclass(slots=True)
class _Held:
    """What is live in a region, on top of what is live around it."""

    live: int = 0
    residual: int = 0
    around: tuple[Value, ...] = ()
    """The largest values around it."""
    values: list[Value] = field(default_factory=list)
    """Those of the region, the largest first."""

    def add(self, values: Iterable[Value], residuals: frozenset[Value]) -> None:
        for value in values:
            insort(self.values, value, key=_largest_first)
            self._count(value, 1, residuals)

    def remove(self, values: Iterable[Value], residuals: frozenset[Value]) -> None:
        for value in values:
            self.values.remove(value)
            self._count(value, -1, residuals)

    def _count(self, value: Value, sign: int, residuals: frozenset[Value]) -> None:
        size = sign * room([value])
        self.live += size
        self.residual += size if value in residuals else 0

    def largest(self) -> tuple[Value, ...]:
        both = heapq.merge(self.around, self.values[:TOLD], key=_largest_first)
        return tuple(value for value, _ in zip(both, range(TOLD), strict=False))

    def inside(self) -> _Held:
        return _Held(self.live, self.residual, self.largest())


def _largest_first(value: Value) -> int:
    return -room([value])


class _Walker:
    def __init__(self, backward: frozenset[Op], residuals: frozenset[Value]) -> None:
        self.backward, self.residuals = backward, residuals

    def region(self, region: Region, held: _Held) -> tuple[Instant | Loop, ...]:
        held.add(rows(region), self.residuals)
        spans: list[Instant | Loop] = []
        for op, made, taken, freed in moments(region):
            held.remove(taken, self.residuals)
            held.add(made, self.residuals)
            backward = op in self.backward
            spans.append(Instant(op, held.live, held.residual, held.largest(), backward))
            spans.extend(self.inside(op, held))
            held.remove(freed, self.residuals)
        return tuple(spans)

    def inside(self, op: Op, held: _Held) -> Sequence[Instant | Loop]:
        """What happens while the regions of an op run."""
        runs = [self.region(region, held.inside()) for region in op.regions]
        match op:
            case Scan():
                return [Loop(op, op.length, runs[0])]
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
"""How many steps of a `while` are told."""


def _told(loop: Loop, steps: int) -> list[int]:
    """The numbers of the steps that are told."""
    times = UNKNOWN_TIMES if loop.times is None else loop.times
    if times <= steps:
        return list(range(times))
    return [*range(steps - 1), times - 1] if steps > 1 else [0]


def _count(spans: Iterable[Instant | Loop], steps: int) -> int:
    return sum(
        len(_told(span, steps)) * _count(span.body, steps) if isinstance(span, Loop) else 1
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
        for number in _told(span, steps):
            body = _unrolled(span.body, steps, (*around, number))
            for tick in body:
                yield tick._replace(skipped=True) if number > before + 1 else tick
                before = number
