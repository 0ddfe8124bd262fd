"""Streams that are rows of an existing array, and stacks that become a part of an array."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.bridge.parameters import (
    dimension_of,
    dimensions_of,
    limits_of,
    permutation_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.cost.fusion import is_fused
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Op, Scan, Stack, Stream, Value


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of an array along an axis: in step `i` that with the number ``sign * i + offset``."""

    array: Value
    axis: int = 0
    sign: int = 1
    offset: int = 0

    def before(self) -> StepRows | None:
        """The same rows in what the array was made of by slices, reversals and transposes (1), for
        the loop only (2).
        """
        op, axis = self.array.op, self.axis
        # Condition 2 of scan-in-place.
        if op is None or len(self.array.uses) != 1:
            return None
        # Condition 1 of scan-in-place.
        if op.name == "rev" and dimensions_of(op) == (axis,):
            return replace(self.reversed(), array=op.operands[0])
        # Condition 1 of scan-in-place.
        if op.name == "slice" and _is_of_rows(op, axis):
            return replace(self, array=op.operands[0], offset=self.offset + starts_of(op)[axis])
        # Condition 1 of scan-in-place.
        if op.name == "transpose" and _keeps_rows(op, permutation_of(op)[axis]):
            return replace(self, array=op.operands[0], axis=permutation_of(op)[axis])
        return None

    def reversed(self) -> StepRows:
        """The same rows by their numbers from the end."""
        last = self.array.shape[self.axis] - 1
        return replace(self, sign=-self.sign, offset=last - self.offset)

    @property
    def is_counted(self) -> bool:
        """Whether the rows are their own numbers, so that there is nothing to read."""
        op = self.array.op
        return op is not None and op.name == "iota" and len(self.array.shape) == 1

    @property
    def windows(self) -> int:
        """In how many pieces a row lies in memory."""
        return prod(self.array.shape[: self.axis])

    @property
    def are_close(self) -> bool:
        """Whether the pieces of a row, and then those of the next one, are near in memory."""
        apart = self.array.nbytes // max(self.windows, 1)
        piece = apart // max(self.array.shape[self.axis], 1)
        return cost_model().are_close(self.windows, apart, piece)

    def number(self, step: jax.Array) -> jax.Array:
        """That of the row of a step."""
        number = step if self.sign > 0 else lax.neg(step)
        return lax.add(number, np.int32(self.offset)) if self.offset else number


@dataclass(frozen=True, slots=True)
class PlaceInArray:
    """Which rows of an array a loop stacks, and what else is in it."""

    rows: StepRows
    start: Value | None = None
    """The array as it is before the rows are written into it, if that matters."""
    others: tuple[tuple[Value, int, tuple[int, ...]], ...] = ()
    """What is written beside the rows: at which row, and which axis of it is which of the array."""
    path: tuple[Op, ...] = ()
    """The ops from the stack to the array, which is the result of the last."""

    @property
    def is_result(self) -> bool:
        """Whether the array is a result of the program."""
        users = self.rows.array.users
        return any(user.is_terminator and user.parent is None for user in users)

    def after(self, op: Op, position: int) -> PlaceInArray | None:
        """The same rows in what an op makes of the array."""
        rows, path, made = self.rows, (*self.path, op), op.results[0]
        axis = rows.axis
        # Condition 1 of scan-in-place.
        if op.name == "rev" and dimensions_of(op) == (axis,) and not self.others:
            return replace(self, rows=replace(rows.reversed(), array=made), path=path)
        # Condition 1 of scan-in-place.
        if op.name == "transpose" and self.start is None and _keeps_rows(op, axis):
            order = permutation_of(op)
            rows = replace(rows, array=made, axis=order.index(axis))
            others = ((v, n, tuple(turned[a] for a in order)) for v, n, turned in self.others)
            return replace(self, rows=rows, others=tuple(others), path=path)
        if self.others or self.start is not None:
            return None
        # Condition 2 of scan-in-place.
        if op.name == "concatenate" and dimension_of(op) == axis:
            firsts = [sum(v.shape[axis] for v in op.operands[:k]) for k in range(len(op.operands))]
            rows = replace(rows, array=made, offset=rows.offset + firsts[position])
            order = tuple(range(len(made.shape)))
            parts = zip(op.operands, firsts, strict=True)
            others = ((v, n, order) for k, (v, n) in enumerate(parts) if k != position)
            return PlaceInArray(rows, None, tuple(others), path)
        # Condition 2 of scan-in-place.
        if op.name == "dynamic_update_slice" and position == 1:
            first = _first_row(op, axis)
            if first is not None:
                rows = replace(rows, array=made, offset=rows.offset + first)
                return PlaceInArray(rows, op.operands[0], (), path)
        return None


def rows_of_stream(stream: Stream, scan: Scan) -> StepRows | None:
    """Which rows of an array that is there anyway a stream is."""
    rows = StepRows(stream.operand)
    while (earlier := rows.before()) is not None:
        rows = earlier
    if not _is_noticed(stream.operand) or not _is_whole(rows.array):
        return None
    if rows.is_counted:
        return rows
    copied = rows.array is not stream.operand and _is_kept(rows, stream.operand, scan)
    if not copied or not rows.are_close:
        return None
    are_numbers = rows.windows == stream.param.size > 1
    return None if are_numbers and cost_model().is_read_one_by_one(stream.param, scan) else rows


def _is_noticed(array: Value) -> bool:
    """Whether a copy of an array counts beside what XLA aligns in a loop."""
    return not cost_model().is_quick(array.nbytes)


def _is_of_rows(part: Op, axis: int) -> bool:
    """Whether a slice is of whole rows along an axis, one beside the other."""
    (array,) = part.operands
    taken = zip(starts_of(part), limits_of(part), array.shape, strict=True)
    # Condition 1 of scan-in-place.
    whole = all(d == axis or (low, high) == (0, n) for d, (low, high, n) in enumerate(taken))
    # Condition 1 of scan-in-place.
    return whole and all(n == 1 for n in strides_of(part))


def _keeps_rows(transpose: Op, axis: int) -> bool:
    """Whether a transpose moves one axis of its operand, the others in their order."""
    others = [each for each in permutation_of(transpose) if each != axis]
    return others == sorted(others)


def _is_whole(array: Value) -> bool:
    """Whether its type says of no mesh that it may be divided over."""
    return bool(array.aval.sharding.mesh.empty)


def _is_kept(rows: StepRows, copy: Value, scan: Scan) -> bool:
    """Whether an array is kept until the loop begins, whoever reads it there; or is in memory
    before it is copied, and keeping it takes no more than both did.  XLA transposes into one array,
    and copies that into another.
    """
    array = rows.array
    if array.op is None:
        return True
    region = scan.region
    if region is None or array.region is not region:
        return False
    users = (region.ancestor(user) for user in array.users)
    if any(user is not None and region.order(user) >= region.order(scan) for user in users):
        return True
    stacked = sum(stack.result.nbytes for stack in scan.stacks)
    more = max(min(array.nbytes, stacked) - copy.nbytes, 0)
    is_moved = rows.axis != 0 and len(array.uses) == 1 and not _is_transposed(array.op)
    return (is_moved or not is_fused(array.op)) and cost_model().is_quick(more)


def _is_transposed(op: Op) -> bool:
    """Whether what an op computes was transposed before: XLA drops a transpose back."""
    region, seen = op.region, [op]
    for each in seen:
        made = (value.op for value in each.operands)
        near = (m for m in made if m is not None and m.region is region and is_fused(m))
        seen += (m for m in near if m not in seen)
        if each.name == "transpose":
            return True
    return False


def are_few_numbers(sources: Iterable[Value], scan: Scan) -> bool:
    """Whether what a loop streams for some parameters are numbers of rows only, so few that making
    them takes no longer than a step.
    """
    params = {*sources}
    read = [stream.operand for stream in scan.streams if stream.param in params]
    are_numbers = all(v.op is not None and v.op.name == "iota" for v in read)
    return are_numbers and cost_model().is_hidden(sum(v.nbytes for v in read))


def place_of_stack(stack: Stack, scan: Scan) -> PlaceInArray | None:
    """The larger array that a stack becomes a part of, or is moved to, and which rows of it (2)."""
    if not _is_noticed(stack.result):
        return None
    place = PlaceInArray(StepRows(stack.result))
    # Condition 2 of scan-in-place.
    while len(uses := place.rows.array.uses) == 1:
        ((op, position),) = uses
        following = place.after(op, position) if _is_beside(op, scan) else None
        if following is None:
            break
        place = following
    return place if place.path and _is_less(place, stack, scan) else None


def _is_beside(op: Op, scan: Scan) -> bool:
    return op.region is scan.region and not op.is_terminator


def _is_less(place: PlaceInArray, stack: Stack, scan: Scan) -> bool:
    """Whether the array, in the place of the stack, takes little more while the loop runs than the
    stack, and its rows are close to each other.
    """
    whole, start = place.rows.array, place.start
    if start is not None and _is_needed(start, scan):
        return False
    others = whole.nbytes - stack.result.nbytes
    return (
        others < stack.result.nbytes
        and _is_whole(whole)
        and place.rows.are_close
        and not _is_scattered(stack, place.rows)
    )


def _is_scattered(stack: Stack, rows: StepRows) -> bool:
    """Whether the numbers of a row would be computed one by one, as they are written apart."""
    beside, model = stack.value.size // max(rows.windows, 1), cost_model()
    return (beside == 1 or model.is_short(beside)) and model.is_made_one_by_one(stack.value)


def _is_needed(start: Value, scan: Scan) -> bool:
    """Whether an array is made after the loop, or the loop reads it: then writing to it as the loop
    runs takes a copy.
    """
    region = scan.region
    assert region is not None
    made = start.op
    if made is not None and made.region is region and region.order(made) > region.order(scan):
        return True
    return any(region.ancestor(user) is scan for user in start.users)


def _first_row(update: Op, axis: int) -> int | None:
    """The row at which an update begins, of whole rows at a known place; None if it is another."""
    array, write = update.operands[0], access(update)
    if write is None or array.aval != update.result.aval:
        return None
    extent = write.window[axis]
    rows = [n for d, n in enumerate(write.sizes) if d != axis]
    whole = rows == [n for d, n in enumerate(array.shape) if d != axis]
    start = extent.start if whole and write.is_located else None
    return start.offset if start is not None and start.is_constant else None
