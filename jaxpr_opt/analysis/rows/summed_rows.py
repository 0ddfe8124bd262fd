"""Functions of rows that are added up, over all places or over those of each row of a table.

It is the transpose of `jaxpr_opt.analysis.rows.mapped_reads`: of ops that compute row by row
what is read of a table, the gradient is linear, row by row, in cotangents of all places, until
these are added to the rows of the table, or summed up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.analysis.rows.added_rows import picked_axis
from jaxpr_opt.analysis.rows.mapped_reads import (
    MappedReads,
    Places,
    is_by_rows,
    is_repeated,
    is_short,
    made_of,
    places_read,
    rows_of_operand,
)
from jaxpr_opt.analysis.rows.read_rows import AxesOfPart
from jaxpr_opt.analysis.rows.row_axes import row_axis
from jaxpr_opt.analysis.values.linearity import linear_operands
from jaxpr_opt.bridge.parameters import axes_of, is_resharded, mode_of, numbers_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import Readers
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value, is_sized


@dataclass(frozen=True, slots=True, eq=False)
class SummedRows:
    """Sums of what is linear in rows at many places, and made row by row."""

    rows: MappedReads
    """What is read of tables at these places, and what is made of that."""
    sums: dict[Op, int]
    """The ops that sum up, in program order, and which operand of each is linear."""
    ops: dict[Op, None]
    """What is linear, in program order."""
    leaves: dict[Value, None]
    """In what it is linear."""
    axes: dict[Value, AxesOfPart]
    """Of all these, and of what is made of tables, the axes along which the rows lie."""
    whole: dict[Value, None]
    """What the ops read that is the same for all rows."""

    @property
    def unread(self) -> list[Op]:
        """The ops, and the reads of tables, whose results nothing else reads, the last first."""
        region = next(iter(self.sums)).region
        assert region is not None
        every = {*self.ops, *self.rows.ops, *self.rows.reads}
        found = set(self.sums)
        unread = []
        for op in sorted(every, key=region.order, reverse=True):
            if all(user in found for user in op.result.users):
                found.add(op)
                unread.append(op)
        return unread


def places_added(scatter: Op) -> Places | None:
    """Where a scatter adds whole rows along one axis, more than there are; None if it does not."""
    if scatter.name != "scatter-add":
        return None
    array, index, update = scatter.operands
    axis = picked_axis(scatter) if is_sized((*array.shape, *update.shape)) else None
    # Condition 1 of add-before-mapping.
    if axis is None or any(map(is_sharded, scatter.operands)) or not is_short(index):
        return None
    places = Places(index, int(array.shape[axis]), mode_of(scatter))
    return places if places.rows > 1 and places.share < 1 else None


def summed_rows(op: Op) -> SummedRows | None:
    """Sums of what is made of rows at the places that a gather reads, or a scatter adds to, if it
    is the first op that does so there; None if there are none.
    """
    at = places_read(op) or places_added(op)
    if at is None or op.region is None:
        return None
    ops = [each for each in dict.fromkeys(at.index.users) if each.region is op.region]
    # Condition 1 of add-before-mapping.
    reads = tuple(each for each in ops if places_read(each) == at)
    adds = [each for each in ops if places_added(each) == at]
    if op is not (reads or adds)[0]:
        return None
    rows = made_of(at, reads)
    found = SummedRows(rows, {}, {}, {}, dict(rows.axes), {})
    for each in sorted({*adds, *_summing(rows)}, key=op.region.order):
        for position, axes in _summed(each, found):
            linear = _linear(each.operands[position], axes, found)
            if linear is not None and (linear[0] or each.name == "dot_general"):
                ops_, leaves, more = linear
                whole = found.whole | _read_whole(ops_, more)
                # Condition 2 of add-before-mapping.
                if any(more.get(v) for v in whole):
                    continue
                found.sums[each] = position
                found.ops.update(ops_)
                found.leaves.update(leaves)
                found.axes.update(more)
                found.whole.update(whole)
                break
    return found if found.sums else None


def _summing(rows: MappedReads) -> Iterator[Op]:
    """The ops that may sum up, over all places, what is made of rows of tables."""
    reached = dict(rows.axes)
    pending = Readers(rows.at.index.region if not rows.reads else rows.reads[0].region)
    for value in rows.axes:
        pending.add(value)
    count = 0
    for op in pending:
        if op in rows.ops or not is_by_rows(op):
            continue
        count += 1
        if count > limits.OPS_OF_ROWS:
            return
        for position, value in enumerate(op.operands):
            if value not in reached:
                continue
            ends = {row_axis(op, position, axis): k for axis, k in reached[value].items()}
            if set(ends) == {None} and op.name in {"dot_general", "reduce_sum"}:
                yield op
            kept = {axis: k for axis, k in ends.items() if axis is not None}
            if rows.at.is_in_order(kept):
                reached[op.result] = kept
                pending.add(op.result)
                break


def _summed(op: Op, found: SummedRows) -> Iterator[tuple[int, AxesOfPart]]:
    """The operands of an op that it may sum up over all places, and the axes along which these are;
    all else that it reads along them is made of rows of the tables.
    """
    at = found.rows.at
    if op.name == "scatter-add":
        window = numbers_of(op).update_window_dims
        lead = [a for a in range(len(op.operands[2].shape)) if a not in window]
        yield 2, dict(zip(lead, range(len(lead)), strict=True))
    elif op.name == "reduce_sum":
        axes = sorted(axes_of(op))
        if [op.operands[0].shape[a] for a in axes] == list(at.shape):
            yield 0, {axis: k for k, axis in enumerate(axes)}
    elif not is_resharded(op):
        contracted, _ = numbers_of(op)
        for position in range(2):
            known = found.rows.axes.get(op.operands[1 - position], {})
            partners = dict(zip(contracted[1 - position], contracted[position], strict=True))
            # Condition 3 of add-before-mapping.
            if known and partners.keys() >= known.keys():
                yield position, {partners[axis]: k for axis, k in known.items()}


AxesOf = dict[Value, AxesOfPart]
Linear = tuple[dict[Op, None], dict[Value, None], AxesOf]


def _linear(value: Value, axes: AxesOfPart, found: SummedRows) -> Linear | None:
    """The ops that make a value, row by row, of others in which it is linear, and these; None if it
    is made of the tables alone, or rows lie along two axes of one value.
    """
    known = {**found.axes, value: axes}
    ops, leaves = dict[Op, None](), dict[Value, None]()
    if value in found.rows.axes or found.axes.get(value, axes) != axes:
        return None
    pending = [value]
    for each in pending:
        step = _step(each, known, found) if len(ops) < limits.OPS_OF_ROWS else None
        if step is None:
            # Condition 2 of add-before-mapping.
            if not found.rows.at.is_in_order(known[each]):
                return None
            leaves[each] = None
            continue
        assert each.op is not None
        ops[each.op] = None
        for v, rows in step.items():
            # Condition 2 of add-before-mapping.
            if known.setdefault(v, rows) != rows:
                return None
            if not is_repeated(v, rows) and v not in pending:
                pending.append(v)
    region = next(iter(ops)).region if ops else None
    order = sorted(ops, key=region.order) if region is not None else []
    return dict.fromkeys(order), leaves, known


def _read_whole(ops: dict[Op, None], axes: AxesOf) -> dict[Value, None]:
    """What ops read of which no axis becomes one of the rows of their results."""
    reads = [(op, place, v) for op in ops for place, v in enumerate(op.operands)]
    return {v: None for op, at, v in reads if not rows_of_operand(op, at, axes[op.result])}


def _step(value: Value, axes: AxesOf, found: SummedRows) -> AxesOf | None:
    """What an op reads along the rows of its result, but for what is made of tables, and where the
    rows are in that; None if it is not linear in what is not repeated.
    """
    op = value.op
    if op is None or op.region is not next(iter(found.rows.at.index.users)).region:
        return None
    if not is_by_rows(op):
        return None
    read: AxesOf = {}
    moving = set[Value]()
    for position, operand in enumerate(op.operands):
        rows = rows_of_operand(op, position, axes[value])
        # Condition 2 of add-before-mapping.
        if operand in found.rows.axes and rows != found.rows.axes[operand]:
            return None
        if not rows or operand in found.rows.axes:
            continue
        # Condition 2 of add-before-mapping.
        if len(rows) < len(axes[value]):
            return None
        read[operand] = rows
        if not is_repeated(operand, rows):
            moving.add(operand)
    # Condition 2 of add-before-mapping.
    if linear_operands(op, lambda v: v not in moving) is None:
        return None
    return read
