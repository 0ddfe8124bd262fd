"""Functions of the rows of a carried array, of which a step changes few rows.

If a step changes row `i` of ``x`` only, and each row of ``f(x)`` is made of one row of it, ``f(x)``
of the next step is that of this one, but for row `i`. A step changes rows by writing windows, or by
shifting all of them and putting others at one end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxpr_opt.analysis.carried.shift_registers import shifting
from jaxpr_opt.analysis.rows.read_rows import makes_or_reads_rows
from jaxpr_opt.analysis.rows.row_axes import axis_of_operand, row_axis
from jaxpr_opt.analysis.values.handed_on import readers, worth_sharing
from jaxpr_opt.analysis.values.induction import bounds
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.analysis.windows.window_primitives import (
    INDEXED_WRITES,
    indexed_axes,
    window_sizes,
)
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.windows import windows_of
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Carry, Op, Scan, Value, is_sized
from jaxpr_opt.ir.nesting import dominates
from jaxpr_opt.ir.traits import can_move


@dataclass(frozen=True, slots=True)
class Change:
    """Rows that a step may have changed: so many, from where an index says, or a number."""

    start: Value | int
    component: int | None
    """Which one of the index; None if it is a scalar."""
    size: int


@dataclass(frozen=True, slots=True)
class Shift:
    """Rows that move to one end, as many as enter at the other."""

    size: int
    held: int
    climbs: bool

    @property
    def entered(self) -> Change:
        """The rows that have entered."""
        return Change(self.held - self.size if self.climbs else 0, None, self.size)


class _Changing(NamedTuple):
    """The rows along an axis that a step may change."""

    axis: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MappedCarries:
    """`ops` of a step, in order, that make rows of the rows of `carries`."""

    scan: Scan
    ops: tuple[Op, ...]
    needed: tuple[Op, ...]
    """These, and those that a step makes of all rows still, which they read."""
    rows: dict[Value, int]
    """The axis along which the rows of each of these values lie, and of those of the carries."""
    roots: dict[Value, Carry]
    """The carries by the value that the ops read: as the step takes it, or as it hands it on."""
    changes: tuple[Change, ...]
    shift: Shift | None
    handed_on: bool
    """Whether the ops read them as the step hands them on."""

    @property
    def read(self) -> list[Value]:
        """What the rest of the step reads."""
        return [op.result for op in self.ops if readers(op.result, self.ops)]

    @property
    def changed(self) -> int:
        """How many rows a step computes."""
        return sum(change.size for change in self.changes)

    @property
    def held(self) -> int:
        """How many rows there are."""
        root = next(iter(self.roots))
        return int(root.shape[self.rows[root]])


def written_rows(carry: Carry, axis: int, change: Change) -> Access | None:
    """The write that makes all the rows that change, in range; None if there is none."""
    write = carry.next.op
    found = access(write) if write is not None and write.operands[0] is carry.param else None
    # Condition 1 of carry-mapped-rows.
    if found is None or found.kind != "write" or _change(found.op, axis) != change:
        return None
    sizes = enumerate(zip(found.sizes, found.array.shape, strict=True))
    if any(size != n for at, (size, n) in sizes if at != axis):
        return None
    if found.op.name == "dynamic_update_slice":
        return found
    place = bounds(found.indices[0])
    # Condition 1 of carry-mapped-rows.
    is_within = place is not None and place[0] >= 0 and place[1] < found.array.shape[axis]
    return found if is_within and found.sizes[axis] == found.indices[0].size == 1 else None


def mapped_carries(scan: Scan) -> Iterator[MappedCarries]:
    """What a step makes of the rows of carries, as it takes them and as it hands them on."""
    kinds: dict[Shift | None, dict[Carry, _Changing]] = {}
    for carry, changing in _changing(scan):
        kinds.setdefault(None, {})[carry] = changing
    for each in shifting(scan):
        shift = Shift(each.size, each.held, each.climbs)
        kinds.setdefault(shift, {})[each.carry] = _Changing(each.axis, (shift.entered,))
    for kind, carries in kinds.items():
        for handed_on in (False, True):
            yield from _mapped(scan, kind, carries, handed_on=handed_on)


def _mapped(
    scan: Scan, shift: Shift | None, carries: dict[Carry, _Changing], *, handed_on: bool
) -> Iterator[MappedCarries]:
    """What is made of rows that change in one way, for carries that ops read together."""
    roots = {c.next if handed_on else c.param: c for c in carries}
    axes = {root: carries[c].axis for root, c in roots.items()}
    ops, rows, sources = _ops_by_row(scan, axes, moves=shift is not None)
    for group in _joined(dict.fromkeys(sources[op.result] for op in ops)):
        some = [op for op in ops if sources[op.result] <= group]
        # Condition 1 of carry-mapped-rows.
        of_group = {root: c for root, c in roots.items() if root in group}
        changes = dict.fromkeys(each for c in of_group.values() for each in carries[c].changes)
        kept = worth_sharing(scan.body, (op.result for op in some))
        if any(readers(op.result, kept) for op in kept):
            needed = _leading_to(kept, some)
            yield MappedCarries(scan, kept, needed, rows, of_group, (*changes,), shift, handed_on)


def _leading_to(kept: Iterable[Op], ops: Sequence[Op]) -> tuple[Op, ...]:
    """Those of these ops, in order, that make what some of them read, and these."""
    found = set(kept)
    for op in reversed(ops):
        if any(use.op in found for use in op.result.uses):
            found.add(op)
    return tuple(op for op in ops if op in found)


def _joined(sets: Iterable[frozenset[Value]]) -> list[frozenset[Value]]:
    """The unions of sets that have elements in common."""
    groups: list[frozenset[Value]] = []
    for each in sets:
        apart = [group for group in groups if group.isdisjoint(each)]
        groups = [*apart, each.union(*(group for group in groups if group not in apart))]
    return groups


def _ops_by_row(
    scan: Scan, roots: dict[Value, int], *, moves: bool
) -> tuple[tuple[Op, ...], dict[Value, int], dict[Value, frozenset[Value]]]:
    """The ops that make rows of the rows of these values, the axis of their rows, and which of the
    values each is made of.
    """
    rows, ops = dict(roots), list[Op]()
    sources = {root: frozenset({root}) for root in roots}
    same: set[Value] = set()
    """What is made in the step, and is the same in every one."""

    def is_same(value: Value) -> bool:
        return value in same or dominates(value, scan)

    for op in scan.body.ops:
        if op.is_terminator or not can_move(op):
            continue
        # Condition 3 of carry-mapped-rows.
        of_rows = [v for v in op.operands if v in rows]
        if not all(v in rows or is_same(v) for v in op.operands):
            continue
        if not of_rows:
            same.update(op.results)
        elif (to := _rows_made(op, rows, moves=moves)) is not None:
            rows[op.result] = to
            sources[op.result] = frozenset().union(*(sources[v] for v in of_rows))
            ops.append(op)
    return tuple(ops), rows, sources


def _rows_made(op: Op, rows: dict[Value, int], *, moves: bool) -> int | None:
    """The axis of the rows of a result; None if it is not made row by row, or of rows that move and
    others that do not.
    """
    if not makes_or_reads_rows(op):
        return None
    if any(map(is_sharded, (op.result, *op.operands))) or not is_sized(op.result.shape):
        return None
    # Condition 2 of carry-mapped-rows.
    axes = {row_axis(op, i, rows[v]) for i, v in enumerate(op.operands) if v in rows}
    to = axes.pop() if len(axes) == 1 else None
    others = [i for i, v in enumerate(op.operands) if v not in rows]
    if to is not None and moves and any(_has_rows(op, i, to) for i in others):
        return None
    return to


def _has_rows(op: Op, position: int, to: int) -> bool:
    """Whether rows of an operand that go with those of the result are not the same."""
    value = op.operands[position]
    axis = axis_of_operand(op, position, to)
    made = value.op
    # Condition 3 of carry-mapped-rows.
    if axis is None or made is None or made.name != "broadcast_in_dim":
        return axis is not None
    return axis_of_operand(made, 0, axis) is not None


def _changing(scan: Scan) -> Iterator[tuple[Carry, _Changing]]:
    """The carries of which a step writes windows, each with an axis of which it writes a part."""
    for carry in scan.carries:
        if carry.is_invariant or not is_sized(carry.param.shape) or is_sharded(carry.param):
            continue
        writes = _writes(carry, scan)
        for axis in range(len(carry.param.shape)) if writes else ():
            found = [_change(op, axis) for op in writes]
            changes = [change for change in found if change is not None]
            # Condition 1 of carry-mapped-rows.
            if len(changes) == len(found):
                yield carry, _Changing(axis, tuple(changes))
                break


def _writes(carry: Carry, scan: Scan) -> tuple[Op, ...]:
    """The ops that write what a step hands on to what it was given, or select of such; none if it
    is anything else.
    """
    pending, writes = [carry.next], dict[Op, None]()
    while pending:
        value = pending.pop()
        op = value.op
        if value is carry.param or op in writes:
            continue
        # Condition 1 of carry-mapped-rows.
        if op is None or op.region is not scan.body or len(writes) > limits.WRITES_IN_A_ROW:
            return ()
        writes[op] = None
        if op.name == "select_n":
            pending += op.operands[1:]
        elif op.name == "dynamic_update_slice" or op.name in INDEXED_WRITES:
            pending.append(op.operands[0])
        else:
            return ()
    return tuple(op for op in writes if op.name != "select_n")


def _change(write: Op, axis: int) -> Change | None:
    """The rows along an axis that an op writes; None if that are all, or these are not known."""
    array, *others = write.operands
    if write.name == "dynamic_update_slice":
        size = others[0].shape[axis]
        return Change(others[1 + axis], None, size) if size < array.shape[axis] else None
    # Condition 1 of carry-mapped-rows.
    if axis not in indexed_axes(write):
        return None
    if windows_of(write) != 1:
        return None
    return Change(others[0], indexed_axes(write).index(axis), window_sizes(write)[axis])
