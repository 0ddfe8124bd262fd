"""How the step of a loop can be computed with vectors: `analysis.scalars.packs` finds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from jaxpr_opt.analysis.scalars.element_provenance import Lane
from jaxpr_opt.analysis.values.constants import identity
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.graph import Carry, Op, Scan, Stream, Value

Lanes = tuple[Lane, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """Ops that do the same, the operands of each beside those of the others."""

    ops: tuple[Op, ...]
    operands: tuple[Lanes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class VectorCarry:
    """Carries that can be one vector, and what it is at the end of a step."""

    carries: tuple[Carry, ...]
    lanes: Lanes


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Streams that can be one stream of rows: what they read another loop stacks for this one."""

    streams: tuple[Stream, ...]


Vector = Pack | VectorCarry | Column


@dataclass(frozen=True, slots=True)
class LaneRun:
    """Lanes beside each other that come from one place: elements of a vector, or the same one."""

    source: Value | Vector
    start: int
    count: int
    repeats: bool = False


@dataclass(eq=False, slots=True)
class Packing:
    """How a scan can be computed with vectors."""

    scan: Scan
    packs: list[Pack] = field(default_factory=list)
    rows: tuple[VectorCarry, ...] = ()
    columns: tuple[Column, ...] = ()
    arrays: dict[Value, Lanes] = field(default_factory=dict)
    """Arrays that the step puts together element by element."""
    places: dict[Value, tuple[Vector, int]] = field(default_factory=dict)
    """In which vector a value is an element."""
    order: tuple[Op | Pack, ...] = ()
    """What a step still computes, operands first."""

    def pieces(self, lanes: Lanes) -> tuple[LaneRun, ...]:
        """The parts of vectors, and the scalars, that make a vector of these lanes."""
        found: list[LaneRun] = []
        for value, index in lanes:
            source, start = self.places.get(value, (value, index))
            last = found[-1] if found else None
            if last is not None and _same(last.source, source):
                if start == last.start + last.count and not last.repeats:
                    found[-1] = LaneRun(source, last.start, last.count + 1)
                    continue
                if start == last.start and (last.repeats or last.count == 1):
                    found[-1] = LaneRun(source, start, last.count + 1, repeats=True)
                    continue
            found.append(LaneRun(source, start, 1))
        return tuple(found)

    @property
    def replaced(self) -> int:
        """How many operations on scalars are done by the packs."""
        return sum(len(pack.ops) for pack in self.packs)

    @property
    def vectors(self) -> Iterator[Lanes]:
        """Every vector that is put together."""
        for pack in self.packs:
            yield from pack.operands
        yield from (each.lanes for each in self.rows)
        yield from self.arrays.values()

    def units(self, values: Iterable[Value]) -> Iterator[Op | Pack]:
        """The ops and packs of the step that compute these values."""
        body = self.scan.body
        for value in values:
            place, _ = self.places.get(value, (None, 0))
            if isinstance(place, Pack):
                yield place
            elif place is None and value.op is not None:
                op = body.ancestor(value.op)
                if op is not None:
                    yield op

    def read(self, unit: Op | Pack) -> list[Value]:
        """The values that a unit of the step reads."""
        if isinstance(unit, Pack):
            return [value for lanes in unit.operands for value, _ in lanes]
        if unit.results and unit.results[0] in self.arrays:
            return [value for value, _ in self.arrays[unit.results[0]]]
        return list(inputs(unit))

    def outputs(self) -> list[Value]:
        """The values that the step must still compute for its loop."""
        gone = {c.param for row in self.rows for c in row.carries}
        nexts = [c.next for c in self.scan.carries if c.param not in gone]
        return [*nexts, *(s.value for s in self.scan.stacks)]

    @property
    def scalars(self) -> list[Value]:
        """Elements that are needed beside their vector, in order."""
        units = [unit for unit in self.order if not isinstance(unit, Pack)]
        whole = [unit for unit in units if not unit.results or unit.results[0] not in self.arrays]
        read = [value for unit in whole for value in self.read(unit)]
        return [v for v in dict.fromkeys([*read, *self.outputs()]) if v in self.places]

    @property
    def saved(self) -> int:
        """How many operations a step has less."""
        inner = (lanes for lanes in dict.fromkeys(self.vectors) if not self.is_outer(lanes))
        made = sum(len(pieces) for pieces in map(self.pieces, inner) if len(pieces) > 1)
        return self.replaced - len(self.packs) - made - len(self.scalars)

    def is_outer(self, lanes: Lanes) -> bool:
        """Whether a vector of these lanes can be put together before the loop."""
        return not any(self.scan.body.defines(value) for value, _ in lanes)


def _same(a: Value | Vector, b: Value | Vector) -> bool:
    if isinstance(a, Value) and isinstance(b, Value):
        return identity(a) == identity(b)
    return a is b
