"""Ops that compute row by row what is read of a table, more often than the table has rows.

A read of rows at several places is followed forwards: an op computes by itself each row of what it
reads if it would compute the rows of the table alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from jax import lax

from jaxpr_opt.analysis.rows.read_rows import AxesOfPart, makes_rows
from jaxpr_opt.analysis.rows.row_axes import row_axis
from jaxpr_opt.bridge.parameters import is_resharded, mode_of, numbers_of, slice_sizes_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import Readers
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value, is_sized
from jaxpr_opt.ir.traits import REDUCING


@dataclass(frozen=True, slots=True)
class Places:
    """Rows of tables, at many places."""

    index: Value
    rows: int
    """How many there are in each table."""
    mode: Any
    """What is done out of range."""

    @property
    def shape(self) -> tuple[int, ...]:
        """How many places there are, along each of their axes."""
        return tuple(self.index.shape[:-1])

    @property
    def share(self) -> float:
        """The rows of a table, and the one that is filled in, as a part of the places."""
        return (self.rows + self.is_filled) / max(prod(self.shape), 1)

    @property
    def is_filled(self) -> bool:
        """Whether what is out of range is one more row."""
        return bool(self.mode == lax.GatherScatterMode.FILL_OR_DROP)

    def is_in_order(self, axes: AxesOfPart) -> bool:
        """Whether these are the axes of all places, in their order."""
        return [axes[axis] for axis in sorted(axes)] == list(range(len(self.shape)))


@dataclass(frozen=True, slots=True, eq=False)
class MappedReads:
    """Reads of rows of tables, all at the same places, and what is made of these row by row."""

    at: Places
    reads: tuple[Op, ...]
    ops: dict[Op, None]
    """In program order."""
    axes: dict[Value, AxesOfPart]
    """Of what is read, of the results, and of what is the same for all rows: the axes along which
    the rows lie, each with the axis of the places that it is."""

    @property
    def made(self) -> list[Value]:
        """What is made of the rows and read by other ops."""
        return [
            op.result for op in self.ops if any(user not in self.ops for user in op.result.users)
        ]

    @property
    def is_reduced(self) -> bool:
        """Whether others reduce all that is made, and read it nowhere else."""
        users = {user for v in self.made for user in v.users} - {*self.ops}
        return all(user.name in REDUCING for user in users)

    @property
    def unread(self) -> list[Value]:
        """What is read of tables by no other ops."""
        found = (read.result for read in self.reads)
        return [v for v in found if all(user in self.ops for user in v.users)]


def places_read(read: Op) -> Places | None:
    """Where a gather reads whole rows along one axis, more than there are; None if it does not."""
    if read.name != "gather":
        return None
    numbers, (array, index) = numbers_of(read), read.operands
    if not is_sized((*array.shape, *read.result.shape)):
        return None
    # Condition 1 of map-before-reading.
    if any(map(is_sharded, (array, index, read.result))) or not is_short(index):
        return None
    # Condition 1 of map-before-reading.
    if numbers.operand_batching_dims:
        return None
    if len(numbers.start_index_map) != 1 or numbers.collapsed_slice_dims != numbers.start_index_map:
        return None
    (axis,) = numbers.start_index_map
    whole = tuple(1 if each == axis else n for each, n in enumerate(array.shape))
    places = Places(index, int(array.shape[axis]), mode_of(read))
    return (
        places if slice_sizes_of(read) == whole and places.rows > 1 and places.share < 1 else None
    )


def is_short(index: Value) -> bool:
    """Whether places are numbers of 32 bits at most: XLA may read others as such."""
    return bool(index.dtype.itemsize <= np.dtype(np.int32).itemsize)


def mapped_reads(read: Op) -> MappedReads | None:
    """What is made, row by row, of what a gather reads, and others that read at the same places;
    None if it is not the first of these, or nothing is.
    """
    at = places_read(read)
    if at is None:
        return None
    reads = tuple(_alike(read, at))
    if reads[0] is not read:
        return None
    found = made_of(at, reads)
    _drop_wide(found)
    return found if found.ops else None


def made_of(at: Places, reads: tuple[Op, ...]) -> MappedReads:
    """What is made, row by row, of all that is read."""
    found = MappedReads(at, reads, {}, {each.result: _axes(each) for each in reads})
    pending = Readers(at.index.region if not reads else reads[0].region)
    for each in reads:
        pending.add(each.result)
    for op in pending:
        made = _made(op, found) if len(found.ops) < limits.OPS_OF_ROWS else None
        if made is not None:
            found.ops[op] = None
            found.axes.update(made)
            pending.add(op.result)
    return found


def _alike(read: Op, at: Places) -> Iterator[Op]:
    """The gathers that read as many rows at the same places, in the same way."""
    for op in dict.fromkeys(at.index.users):
        # Condition 1 of map-before-reading.
        if op.region is read.region and places_read(op) == at:
            yield op


def _axes(read: Op) -> AxesOfPart:
    window = numbers_of(read).offset_dims
    lead = [axis for axis in range(len(read.result.shape)) if axis not in window]
    return {axis: number for number, axis in enumerate(lead)}


def _made(op: Op, found: MappedReads) -> Mapping[Value, AxesOfPart] | None:
    """Where the rows are in what an op makes of rows, and in what it reads that is the same for all
    of them; None if it does not make each of one row, in the order of the places.
    """
    axes = found.axes
    if not is_by_rows(op):
        return None
    to: dict[int, int] = {}
    for position, value in enumerate(op.operands):
        for axis, number in axes.get(value, {}).items():
            end = row_axis(op, position, axis)
            # Condition 2 of map-before-reading.
            if end is None or to.setdefault(end, number) != number:
                return None
    # Condition 2 of map-before-reading.
    if not found.at.is_in_order(to):
        return None
    made = {op.result: to}
    for position, value in enumerate(op.operands):
        if axes.get(value):
            continue
        rows = rows_of_operand(op, position, to)
        # Condition 3 of map-before-reading.
        if rows and not is_repeated(value, rows):
            return None
        is_read_whole = any(user in found.ops for user in value.users)
        # Condition 3 of map-before-reading.
        if rows and is_read_whole:
            return None
        made |= {value: rows} if rows else {}
    return made


def is_by_rows(op: Op | None) -> bool:
    """Whether an op may compute each row of its one result by itself."""
    if op is None or len(op.results) != 1 or not makes_rows(op) or is_resharded(op):
        return False
    return not any(map(is_sharded, (op.result, *op.operands))) and is_sized(op.result.shape)


def rows_of_operand(op: Op, position: int, axes: AxesOfPart) -> AxesOfPart:
    """The axes of an operand that become these of the result."""
    ends = {a: row_axis(op, position, a) for a in range(len(op.operands[position].shape))}
    return {a: axes[end] for a, end in ends.items() if end is not None and end in axes}


def is_repeated(value: Value, axes: AxesOfPart) -> bool:
    """Whether an array repeats the same along these axes."""
    op = value.op
    if op is None or op.name != "broadcast_in_dim" or is_resharded(op):
        return False
    return all(row_axis(op, 0, axis) not in axes for axis in range(len(op.operands[0].shape)))


def _drop_wide(found: MappedReads) -> None:
    """Leave ops that make more than they read of others."""
    for op in reversed(list(found.ops)):
        if any(user in found.ops for user in op.result.users):
            continue
        read = {v for v in op.operands if v.op in found.ops or v.op in found.reads}
        if op.name != "dot_general" and op.result.nbytes > sum(v.nbytes for v in read):
            del found.ops[op]
