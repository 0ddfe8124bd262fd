"""The values that straight-line code makes before its memory peaks and reads after it.

In the gradient of a deep network, these are the residuals of the forward pass. The analysis knows
neither pass: it only compares when arrays are made and read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from jaxpr_opt.analysis.liveness.fused import Fused, fused
from jaxpr_opt.cost.reuse import buffer_of, is_view
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.graph import Op, Region, Value
from jaxpr_opt.ir.traits import is_broadcast, is_pure


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """The ops of a region, the place among them where most is live, and what crosses it."""

    region: Region
    ops: tuple[Op, ...]
    """In order; behind the peak, what is computed inside of others stands before the first."""
    place: Mapping[Op, int]
    at: int
    """The place after that of the op that runs at the peak."""
    readers: Mapping[Value, tuple[int, ...]]
    """Arrays that are made before the peak: where they are read after it."""
    others: Sequence[int]
    """For each place after the peak, bytes of what is made after it; results are not temporary."""
    fused: Fused
    """Which values are in memory."""

    def copied_to(self, region: Region) -> Turn:
        """The same of a copy of the region."""
        of = dict(zip(self.region.ops, region.ops, strict=True))
        same = dict(zip(self.region.params, region.params, strict=True))
        for old, new in of.items():
            same.update(zip(old.results, new.results, strict=True))
        ops = tuple(of[op] for op in self.ops)
        read = {
            of[op]: {same.get(value, value): alike for value, alike in arrays.items()}
            for op, arrays in self.fused.read.items()
        }
        inside = {
            same[value]: frozenset(same.get(array, array) for array in arrays)
            for value, arrays in self.fused.inside.items()
        }
        place = {op: i for i, op in enumerate(ops)}
        readers = {same[value]: places for value, places in self.readers.items()}
        return Turn(region, ops, place, self.at, readers, self.others, Fused(read, inside))

    def is_early(self, value: Value) -> bool:
        """Whether an op of the region makes the value before the peak."""
        return value.op is not None and self.place.get(value.op, self.at) < self.at

    def reads(self, op: Op) -> Iterator[Value]:
        """The values that an op reads and an op before the peak makes, views apart."""
        return (v for v in dict.fromkeys(map(buffer_of, inputs(op))) if self.is_early(v))

    def arrays(self, value: Value) -> Iterator[Value]:
        """The arrays that take memory for a value, of those that an op before the peak makes."""
        return filter(self.is_early, self.fused.arrays(value))

    def nbytes(self, value: Value) -> int:
        """Bytes that a value takes while it is live."""
        return 0 if value in self.fused.inside else nbytes(value)


def is_free(op: Op) -> bool:
    """Whether what an op makes takes no memory: a view, or made wherever it is read."""
    return (is_view(op) or is_broadcast(op)) and is_pure(op)


def nbytes(value: Value) -> int:
    """Bytes that a value takes while it is live."""
    return 0 if value.op is not None and is_free(value.op) else value.nbytes


def turn(region: Region) -> Turn:
    """Where the memory that the ops of a region take peaks."""
    ops = tuple(region.ops)
    place = {op: i for i, op in enumerate(ops)}
    found = fused(region.terminator, repeats=False)
    used = _places_read(found, place)
    results = {array for value in region.outputs for array in found.arrays(value)}
    temporary = {v: places[-1] for v, places in used.items() if v not in results}
    live = _live(temporary, place, len(ops))
    at = 1 + max(range(len(ops)), key=live.__getitem__)
    ops = _sunk(ops, at, found)
    place = {op: i for i, op in enumerate(ops)}
    used = _places_read(found, place)
    temporary = {v: places[-1] for v, places in used.items() if v not in results}
    late = {v: tuple(p for p in places if p >= at) for v, places in used.items()}
    readers = {v: places for v, places in late.items() if places and _made(v, place) < at}
    others = {v: last for v, last in temporary.items() if _made(v, place) >= at}
    return Turn(region, ops, place, at, readers, _live(others, place, len(ops)), found)


def _sunk(ops: Sequence[Op], at: int, found: Fused) -> tuple[Op, ...]:
    """Ops, of which those behind the peak that are computed inside of others, from what is made
    before it, stand before the first of these: nothing is read for them earlier.
    """
    region, early, sinking = ops[0].region, set(ops[:at]), set[Op]()
    assert region is not None
    for op in ops[at:]:
        is_inside = is_free(op) or all(value in found.inside for value in op.results)
        if op.is_terminator or op.regions or not (is_inside and is_pure(op)):
            continue
        if any(v.op in early or v.op in sinking for v in op.operands):
            sinking.add(op)
    place = {op: (i, i) for i, op in enumerate(ops)}
    for op in reversed([op for op in ops if op in sinking]):
        users = (region.ancestor(use.op) for value in op.results for use in value.uses)
        first = min((place[user][0] for user in users if user is not None), default=place[op][0])
        place[op] = first, place[op][1]
    return tuple(sorted(ops, key=place.__getitem__))


def _places_read(found: Fused, place: Mapping[Op, int]) -> dict[Value, list[int]]:
    """Where each array that an op makes is read, in order; its results are no reads."""
    used: dict[Value, list[int]] = {}
    for op, arrays in found.read.items():
        for array in arrays if not op.is_terminator else ():
            if array.op in place:
                used.setdefault(array, []).append(place[op])
    return used


def _live(last: Mapping[Value, int], place: Mapping[Op, int], count: int) -> list[int]:
    """The bytes that are live while each op runs, of arrays that are read for the last time at some
    place.
    """
    change = [0] * (count + 1)
    for value, end in last.items():
        change[_made(value, place)] += nbytes(value)
        change[end + 1] -= nbytes(value)
    return list(accumulate(change))[:count]


def _made(value: Value, place: Mapping[Op, int]) -> int:
    assert value.op is not None
    return place[value.op]
