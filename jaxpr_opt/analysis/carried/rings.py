"""Shift registers of which a step reads and writes a few rows only: they could be rings.

::

    register before step t     row i                   in step t moves to row i + d
    ring before step t         row (i + start) % W     stays; `start` moves by -d

`ring(scan, carry)` follows a carry through a step. A *version* is what ops make of it that leave
most rows as they are, along one axis, maybe all of them in another place: slices put together,
padding, writes and sums of a few rows. All else must read a few rows of a version.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxpr_opt.analysis.carried.row_sources import SourceRows, has_same_elements, pieces
from jaxpr_opt.analysis.sparse.disjoint_pieces import is_one_by_one
from jaxpr_opt.analysis.sparse.scatter_chains import Chain, Link, Piece, added
from jaxpr_opt.analysis.values.renaming import is_noop_cast
from jaxpr_opt.analysis.windows.window_primitives import (
    UPDATE,
    UPDATING,
    component_of,
    window_sizes,
)
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    combiner_of,
    sizes_of,
    slice_sizes_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.cost.windows import windows_of
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Carry, Op, Scan, Value, is_sized
from jaxpr_opt.ir.traits import SCATTERING, SUMS

MOVES = frozenset({"concatenate", "pad", "stack", "dynamic_update_slice", "scatter"})
"""The primitives that may move the rows of an array."""


@dataclass(frozen=True, slots=True, eq=False)
class RingRows:
    """Rows of a version, from `start` on, that come from elsewhere."""

    start: int
    source: SourceRows


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """What an op makes of an earlier version, None of the carry itself."""

    value: Value
    start: int
    """Where its first row is in a ring in which the carry's first row is at 0."""
    made_of: Value | None = None
    rows: tuple[RingRows, ...] = ()
    """What is written, at fixed places;"""
    op: Op | None = None
    """or the op that writes or adds rows at places from the data;"""
    terms: Chain | None = None
    """or what is added."""

    @property
    def written(self) -> tuple[Value, ...]:
        """What is written, and where."""
        others = self.op.operands[1:] if self.op is not None else ()
        return (*(rows.source.array for rows in self.rows), *others)


@dataclass(frozen=True, slots=True, eq=False)
class TakenRows:
    """Rows that an op takes of a version, and where they come from: a version, or what has been
    written into one.
    """

    value: Value
    source: SourceRows


@dataclass(slots=True, eq=False)
class Ring:
    """A carry whose rows a step moves along an axis."""

    scan: Scan
    carry: Carry
    axis: int
    versions: dict[Value, Version] = field(default_factory=dict)
    parts: dict[Value, TakenRows] = field(default_factory=dict)
    """By their values, and by values of the same elements in another shape."""
    reads: list[Op] = field(default_factory=list)
    """The ops that read a row of a version at a place from the data."""
    taken: list[TakenRows] = field(default_factory=list)
    """The parts that others than versions are made of."""

    @property
    def held(self) -> int:
        """How many rows the ring has."""
        return self.carry.param.shape[self.axis]

    @property
    def moved(self) -> int:
        """How far the start moves in a step: at most half around, in either direction."""
        forward = self.versions[self.carry.next].start % self.held
        return forward if 2 * forward <= self.held else forward - self.held

    @property
    def needed(self) -> list[Version]:
        """The versions that are read, or that others are computed from, in program order."""
        wanted = {self.carry.next, *(op.operands[0] for op in self.reads)}
        wanted.update(part.source.array for part in self.taken)
        found: list[Version] = []
        for version in reversed(self.versions.values()):
            if version.value in wanted and version.made_of is not None:
                found.append(version)
                wanted.update((version.made_of, *version.written))
        return found[::-1]

    @property
    def has_windows_apart(self) -> bool:
        """Whether an op reads, writes or adds several rows, each at a place of its own."""
        ops = (user for value in self.versions for user in value.users)
        return any(op.name in SCATTERING | {"gather"} and windows_of(op) > 1 for op in ops)

    @property
    def nbytes(self) -> int:
        """Bytes that a step reads and writes."""
        row = self.carry.param.nbytes // self.held
        made = self.needed
        written = sum(rows.source.size for each in made for rows in each.rows) * row
        written += sum(
            each.op.operands[UPDATE.get(each.op.name, 2)].nbytes for each in made if each.op
        )
        written += sum(each.terms.nbytes for each in made if each.terms)
        read = sum(part.value.nbytes for part in self.taken)
        return written + read + sum(op.result.nbytes for op in self.reads)


def ring(scan: Scan, carry: Carry) -> Ring | str | None:
    """The ring that a carry could be; a string says why a carry whose rows a step moves cannot be
    one; None for any other carry.
    """
    # Condition 4 of shift-in-place.
    if carry.is_invariant or not is_sized(carry.param.shape) or is_sharded(carry.param):
        return None
    for axis, held in enumerate(carry.param.shape):
        if held > 1:
            found = Ring(scan, carry, axis)
            refused = _follow(found)
            if carry.next in found.versions and found.versions[carry.next].start:
                return refused or found
    return None


def _follow(found: Ring) -> str | None:
    """Look at all uses of a carry, and of what is made of it, in program order."""
    body, name, refused = found.scan.body, found.carry.param.label, None
    found.versions[found.carry.param] = Version(found.carry.param, 0)
    pending = _Ops(found)
    pending.add(found.carry.param)
    for op in pending:
        used = [v for v in op.operands if v in found.versions]
        parts = [found.parts[v] for v in op.operands if v in found.parts]
        version = _version(op, found)
        if any(v in found.versions for v in pending.inside.get(op, ())):
            # Condition 2 of shift-in-place.
            refused = refused or f"{name} is read inside of {op.name}"
        parts += [found.parts[v] for v in pending.inside.get(op, ()) if v in found.parts]
        if op is body.terminator:
            # Condition 2 of shift-in-place.
            if used != [found.carry.next]:
                refused = refused or f"{name} leaves a step whole"
        elif version is not None:
            found.versions[version.value] = version
            pending.add(version.value)
            parts = [found.parts[v] for v in version.written if v in found.parts]
        elif used:
            taken = _parts(op, found)
            for part in taken:
                found.parts[part.value] = part
                pending.add(part.value)
            if not taken and len(used) == 1 and _reads_a_row(op, found):
                found.reads.append(op)
            # Condition 2 of shift-in-place.
            elif not taken:
                refused = refused or f"{op.name} reads all of {name}"
        elif parts and has_same_elements(op):
            found.parts[op.result] = parts.pop()
            pending.add(op.result)
        found.taken.extend(part for part in parts if part not in found.taken)
    return refused


class _Ops:
    """The users of values in a region, each once, in program order."""

    def __init__(self, found: Ring) -> None:
        self.body = found.scan.body
        self.heap: list[tuple[int, int, Op]] = []
        self.seen: set[Op] = set()
        self.inside: dict[Op, list[Value]] = {}
        """What is used inside of an op's regions."""

    def add(self, value: Value) -> None:
        for user in value.users:
            op = self.body.ancestor(user)
            assert op is not None
            if op is not user:
                self.inside.setdefault(op, []).append(value)
            if op not in self.seen:
                self.seen.add(op)
                heapq.heappush(self.heap, (self.body.order(op), len(self.seen), op))

    def __iter__(self) -> Iterator[Op]:
        while self.heap:
            yield heapq.heappop(self.heap)[-1]


def _version(op: Op, found: Ring) -> Version | None:
    """What an op makes of a version, if most rows stay."""
    param = found.carry.param
    if len(op.results) != 1 or op.regions or op.is_terminator:
        return None
    result = op.result
    if (result.shape, result.dtype) != (param.shape, param.dtype):
        return None
    if op.name in SUMS:
        return _sum(op, found)
    first = op.operands[0] if op.operands else None
    if first in found.versions and is_noop_cast(op):
        return Version(result, found.versions[first].start, first)
    return _joined(result, found) or _written(op, found)


def _sum(op: Op, found: Ring) -> Version | None:
    for array, dense in (op.operands, op.operands[::-1]):
        if array not in found.versions or dense is array:
            continue
        terms = added(dense)
        # Condition 3 of shift-in-place.
        if not terms.starts_at_zero or not is_one_by_one(terms, array.dtype):
            continue
        if len(dense.uses) == 1 and all(_is_few_rows(link, found) for link in terms.links):
            return Version(op.result, found.versions[array].start, array, terms=terms)
    return None


def _is_few_rows(link: Link, found: Ring) -> bool:
    """Whether what is added is whole rows at a fixed place, or windows of one row each."""
    if not isinstance(link, Piece):
        return False
    axis, shape, update = found.axis, found.carry.param.shape, link.update.shape
    if not link.starts:
        return _is_at_a_row(link.op, axis, found.held)
    return update[axis] == 1 or all(update[d] == n for d, n in enumerate(shape) if d != axis)


def _joined(result: Value, found: Ring) -> Version | None:
    """A version put together of rows."""
    sources, kept, at = pieces(result, found.axis), Counter[tuple[Value, int]](), 0
    for piece in sources:
        if (version := found.versions.get(piece.array)) is not None:
            kept[piece.array, (piece.start + version.start - at) % found.held] += piece.size
        at += piece.size
    # Condition 1 of shift-in-place.
    if not kept or 2 * max(kept.values()) < found.held:
        return None
    ((array, start), _), rows, at = kept.most_common(1)[0], [], 0
    for piece in sources:
        moved = (piece.start + found.versions[array].start - at - start) % found.held
        # Condition 1 of shift-in-place.
        if piece.array is not array or moved:
            rows.append(RingRows(at, piece))
        at += piece.size
    return Version(result, start, array, tuple(rows))


def _written(op: Op, found: Ring) -> Version | None:
    """A version with rows written, or added, at places from the data."""
    array = op.operands[0] if op.operands else None
    others = op.operands[1:]
    if array not in found.versions or any(v in found.versions for v in others):
        return None
    if op.name not in UPDATING:
        return None
    # Condition 2 of shift-in-place.
    if op.name == "scatter" and combiner_of(op) is not None:
        return None
    if not _is_at_a_row(op, found.axis, found.held):
        return None
    return Version(op.result, found.versions[array].start, array, op=op)


def _parts(op: Op, found: Ring) -> list[TakenRows]:
    """What an op takes of a version, if that is rows at fixed places."""
    shape, axis = found.carry.param.shape, found.axis
    if op.name not in {"slice", "dynamic_slice", "gather", "split"}:
        return []
    parts = []
    for value in op.results:
        others = [value.shape[:axis] + value.shape[axis + 1 :], shape[:axis] + shape[axis + 1 :]]
        if len(value.shape) != len(shape) or others[0] != others[1]:
            return []
        source = _source(value, found)
        if source is None:
            return []
        parts.append(TakenRows(value, source))
    return parts


def _source(value: Value, found: Ring) -> SourceRows | None:
    """Where all rows of a part come from."""
    sources = pieces(value, found.axis)
    if len(sources) == 1:
        return sources[0] if sources[0].array is not value else None
    op, before = value.op, 0
    assert op is not None
    if op.name == "split":
        before = sum(sizes_of(op)[: value.position])
    elif op.name == "slice":
        before = starts_of(op)[found.axis]
    else:
        return None
    return SourceRows(op.operands[0], before, value.shape[found.axis])


def _reads_a_row(op: Op, found: Ring) -> bool:
    """Whether an op reads elements of a version, each of one row."""
    version, *others = op.operands
    if version not in found.versions or version in others:
        return False
    if op.name == "slice":
        whole = all(stride == 1 for stride in strides_of(op))
        return whole and op.result.shape[found.axis] == 1
    return op.name in {"dynamic_slice", "gather"} and _is_at_a_row(op, found.axis, found.held)


def _is_at_a_row(op: Op, axis: int, held: int) -> bool:
    """Whether each window of an op is in one row, and the index can number the rows."""
    where, component = component_of(op, axis)
    # Condition 5 of shift-in-place.
    if not dtypes.holds(op.operands[where].dtype, held):
        return False
    if op.name == "dynamic_slice":
        return slice_sizes_of(op)[axis] == 1
    if op.name == "dynamic_update_slice":
        return op.operands[1].shape[axis] == 1
    if component is None:
        return False
    if op.name == "gather":
        return slice_sizes_of(op)[axis] == 1
    return window_sizes(op)[axis] == 1
