"""Ops that compute row by row what is read of a table, more often than the table has rows.

A read of rows at several places is followed forwards: an op computes by itself each row of what it
reads if it would compute the rows of the table alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from math import prod

from jaxpr_opt.analysis.windows.read_rows import BY_ROWS, AxesOfPart
from jaxpr_opt.analysis.windows.row_axes import row_axis
from jaxpr_opt.bridge.parameters import (
    is_resharded,
    mode_of,
    numbers_of,
    slice_sizes_of,
)
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import Readers
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value, is_sized


@dataclass(frozen=True, slots=True, eq=False)
class MappedReads:
    """Reads of rows of tables, all at the same places, and what is made of these row by row."""

    reads: tuple[Op, ...]
    ops: dict[Op, None]
    """In program order."""
    axes: dict[Value, AxesOfPart]
    """Of what is read, of the results, and of what is the same for all rows: the axes along which
    the rows lie, each with the axis of the places that it is."""

    @property
    def index(self) -> Value:
        """The places."""
        return self.reads[0].operands[1]

    @property
    def places(self) -> tuple[int, ...]:
        """How many places there are, along each of their axes."""
        return tuple(self.index.shape[:-1])

    @property
    def rows(self) -> int:
        """How many rows each table has."""
        return row_count(self.reads[0])

    @property
    def share(self) -> float:
        """The rows of a table, as a part of those that are read."""
        return self.rows / prod(self.places)

    @property
    def made(self) -> list[Value]:
        """What is made of the rows and read by other ops."""
        return [
            op.result for op in self.ops if any(user not in self.ops for user in op.result.users)
        ]

    @property
    def unread(self) -> list[Value]:
        """What is read of tables by no other ops."""
        found = (read.result for read in self.reads)
        return [v for v in found if all(user in self.ops for user in v.users)]


def row_count(read: Op) -> int:
    """How many rows the table has that is read."""
    (axis,) = numbers_of(read).start_index_map
    return int(read.operands[0].shape[axis])


def mapped_reads(read: Op) -> MappedReads | None:
    """What is made, row by row, of what a gather reads, and others that read at the same places;
    None if it is not the first of these, or nothing is.
    """
    reads = tuple(takewhile(lambda _: _reads_rows(read), _alike(read)))
    if not reads or reads[0] is not read or read.region is None:
        return None
    found = MappedReads(reads, {}, {each.result: _axes(each) for each in reads})
    pending = Readers(read.region)
    for each in reads:
        pending.add(each.result)
    for op in pending:
        made = _made(op, found.axes) if len(found.ops) < limits.OPS_OF_ROWS else None
        if made is not None:
            found.ops[op] = None
            found.axes.update(made)
            pending.add(op.result)
    _drop_wide(found)
    return found if found.ops else None


def _alike(read: Op) -> Iterator[Op]:
    """The gathers that read as many rows at the same places, in the same way."""
    index = read.operands[1]
    for op in dict.fromkeys(index.users):
        if op is read:
            yield op
            continue
        is_read = op.name == "gather" and op.region is read.region and _reads_rows(op)
        # Condition 1 of map-before-reading.
        if is_read and row_count(op) == row_count(read) and mode_of(op) == mode_of(read):
            yield op


def _reads_rows(read: Op) -> bool:
    """Whether a gather reads whole rows along one axis, more than there are."""
    numbers, (array, index) = numbers_of(read), read.operands
    if not is_sized((*array.shape, *read.result.shape)):
        return False
    # Condition 1 of map-before-reading.
    if any(map(is_sharded, (array, index, read.result))) or index.dtype.name != "int32":
        return False
    # Condition 1 of map-before-reading.
    if numbers.operand_batching_dims:
        return False
    if len(numbers.start_index_map) != 1 or numbers.collapsed_slice_dims != numbers.start_index_map:
        return False
    (axis,) = numbers.start_index_map
    whole = tuple(1 if each == axis else n for each, n in enumerate(array.shape))
    return slice_sizes_of(read) == whole and 1 < array.shape[axis] < prod(index.shape[:-1])


def _axes(read: Op) -> AxesOfPart:
    window = numbers_of(read).offset_dims
    lead = [axis for axis in range(len(read.result.shape)) if axis not in window]
    return {axis: number for number, axis in enumerate(lead)}


def _made(op: Op, axes: Mapping[Value, AxesOfPart]) -> dict[Value, AxesOfPart] | None:
    """Where the rows are in what an op makes of rows, and in what it reads that is the same for all
    of them; None if it does not make each of one row, in the order of the places.
    """
    if len(op.results) != 1 or op.name not in BY_ROWS or is_resharded(op):
        return None
    if any(map(is_sharded, (op.result, *op.operands))) or not is_sized(op.result.shape):
        return None
    to: dict[int, int] = {}
    for position, value in enumerate(op.operands):
        for axis, number in axes.get(value, {}).items():
            end = row_axis(op, position, axis)
            # Condition 2 of map-before-reading.
            if end is None or to.setdefault(end, number) != number:
                return None
    # Condition 2 of map-before-reading.
    count = max(map(len, axes.values()))
    if [to[axis] for axis in sorted(to)] != list(range(count)):
        return None
    found = {op.result: to}
    for position, value in enumerate(op.operands):
        if axes.get(value):
            continue
        ends = {a: row_axis(op, position, a) for a in range(len(value.shape))}
        rows = {a: to[end] for a, end in ends.items() if end is not None and end in to}
        # Condition 3 of map-before-reading.
        if rows and not _is_repeated(value, rows):
            return None
        found |= {value: rows} if rows else {}
    return found


def _is_repeated(value: Value, axes: AxesOfPart) -> bool:
    """Whether an array repeats the same along these axes."""
    op = value.op
    if op is None or op.name != "broadcast_in_dim" or is_resharded(op):
        return False
    return all(row_axis(op, 0, axis) not in axes for axis in range(len(op.operands[0].shape)))


def _drop_wide(found: MappedReads) -> None:
    """Leave ops that make more than they read of others."""
    changed = True
    while changed:
        changed = False
        for op in reversed(list(found.ops)):
            if any(user in found.ops for user in op.result.users):
                continue
            read = {v for v in op.operands if v in found.axes and not _is_outer(v, found)}
            if op.name != "dot_general" and op.result.nbytes > sum(v.nbytes for v in read):
                del found.ops[op]
                changed = True


def _is_outer(value: Value, found: MappedReads) -> bool:
    """Whether an array is the same for all rows."""
    return value.op not in found.ops and value.op not in found.reads
