"""Stacks whose last row alone is read; streams that are zero but for the first row."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.analysis.rows.row_axes import axis_of_operand
from jaxpr_opt.analysis.sparse.scatter_chains import Piece, Pieces, added
from jaxpr_opt.analysis.values.linearity import carries_cotangents, linear_operands
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.ir.dataflow import Makers, backward_slice, inputs
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Op, Region, Scan, Stack, Stream, Value
from jaxpr_opt.ir.traits import RESHAPING, SUMS, can_move

_MOVING = RESHAPING | {"convert_element_type", "neg", "transpose"}
"""What makes zeros of zeros of one array, and keeps rows apart."""


@dataclass(frozen=True, slots=True, eq=False)
class LastRow:
    """A stack all of whose readers read the row of the last step."""

    stack: Stack
    reads: tuple[Access, ...]
    after: tuple[Op, ...] | None
    """What computes the row from what is known after the loop, in order; None if it is carried."""


@dataclass(frozen=True, slots=True, eq=False)
class LastValue:
    """A carry that no step reads, and what computes it after the loop, in order."""

    carry: Carry
    after: tuple[Op, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FirstRow:
    """A stream whose rows are zero but for that of the first step."""

    stream: Stream
    sums: tuple[tuple[Op, Carry, Value], ...]
    """Where a step adds to a carry what it makes of the row: the addition, the carry, the term."""
    before: tuple[Op, ...]
    """What computes the terms of the first step, in order."""


def last_row(scan: Scan, stack: Stack) -> LastRow | None:
    """How a loop gets by without a stack; None if other rows of it are read."""
    place = 0 if scan.reverse else scan.length - 1
    reads = []
    for use in stack.result.uses:
        read = access(use.op) if use.op.name in {"dynamic_slice", "slice"} else None
        # Condition 1 of carry-last-rows.
        if read is None or not _is_row(read, place):
            return None
        reads.append(read)
    after = _after(scan, stack.value, stack.result)
    return LastRow(stack, tuple(reads), after) if reads else None


def last_value(scan: Scan, carry: Carry) -> LastValue | None:
    """How a loop gets by without a carry; None if a step reads it, or it is not computed later."""
    if carry.param.uses or not carry.result.uses or not scan.body.defines(carry.next):
        return None
    after = _after(scan, carry.next, carry.result)
    return LastValue(carry, after) if after else None


def first_row(scan: Scan, stream: Stream) -> FirstRow | None:
    """The row with which a loop may start instead of reading a stream; None if other rows of it
    count.
    """
    place = scan.length - 1 if scan.reverse else 0
    # Condition 4 of carry-last-rows.
    if not _is_zero_but_for(stream.operand, 0, place):
        return None
    sums = _sums(scan, stream)
    if not sums:
        return None
    ops = backward_slice([term for _, _, term in sums], lambda v: not scan.body.defines(v))
    # Condition 4 of carry-last-rows.
    return FirstRow(stream, tuple(sums), tuple(ops)) if all(map(can_move, ops)) else None


def _sums(scan: Scan, stream: Stream) -> list[tuple[Op, Carry, Value]] | None:
    """The carries to which a step adds what it makes of a row, if that is zero for zeros, and it
    makes nothing else of the row.
    """
    moving, found = {stream.param}, list[tuple[Op, Carry, Value]]()
    for op in _in_order(scan.body, stream.param, moving):
        read = [(position, v) for position, v in enumerate(op.operands) if v in moving]
        carry = _summed(scan, op, read[0][0]) if len(read) == 1 else None
        if carry is not None:
            found.append((op, carry, read[0][1]))
            continue
        linear = linear_operands(op, lambda v: v not in moving)
        # Condition 4 of carry-last-rows.
        if linear is None or not carries_cotangents(scan):
            return None
        moving.update(op.results)
    return found


def _in_order(region: Region, value: Value, moving: set[Value]) -> Iterator[Op]:
    """The ops of a region that read a value, or results of them that are then in `moving`."""
    heap: list[tuple[int, Op]] = []
    seen: set[Op] = set()

    def add(value: Value) -> None:
        for use in value.uses:
            op = region.ancestor(use.op)
            if op is not None and op not in seen:
                seen.add(op)
                heapq.heappush(heap, (region.order(op), op))

    add(value)
    while heap:
        _, op = heapq.heappop(heap)
        yield op
        for result in op.results:
            if result in moving:
                add(result)


def _summed(scan: Scan, plus: Op, position: int) -> Carry | None:
    """The carry that an op adds something to, and that a step reads for nothing else."""
    if plus.name not in SUMS or plus.region is not scan.body:
        return None
    param = plus.operands[1 - position]
    carry = scan.carry_of(param) if param.owner is scan.body else None
    # Condition 4 of carry-last-rows.
    return carry if len(param.uses) == 1 else None


@remembered
def _is_zero_but_for(value: Value, axis: int, place: int) -> bool:
    """Whether an array is zero but for the row at a place along an axis."""
    chain, op = added(value), value.op
    if chain.starts_at_zero:
        return all(_adds_row(link, axis, place) for link in chain.links)
    if op is None or op.name not in _MOVING or len(op.operands) != 1:
        return False
    found = axis_of_operand(op, 0, axis)
    return found is not None and _is_zero_but_for(op.operands[0], found, place)


def _adds_row(link: Piece | Pieces, axis: int, place: int) -> bool:
    """Whether something is added to the row at a place only."""
    if not isinstance(link, Piece) or not link.window:
        return False
    start, size = link.window[axis].start, link.window[axis].size
    return start is not None and start.is_constant and start.offset == place and size == 1


def _is_row(read: Access, place: int) -> bool:
    row = read.window[0]
    is_known = row.start is not None and row.start.is_constant
    return is_known and row.size == 1 and row.start is not None and row.start.offset == place


def _after(scan: Scan, value: Value, result: Value) -> tuple[Op, ...] | None:
    """The ops that compute a value for this result alone, in order, if all that they read of the
    last step is known after the loop; else None.
    """
    own: dict[Op, None] = {}
    position = scan.results.index(result)

    def is_own(op: Op) -> bool:
        users = ((scan.body.ancestor(use.op), use) for use in op.result.uses)
        return can_move(op) and all(
            use.position == position if around is scan.body.terminator else around in own
            for around, use in users
        )

    makers = Makers(scan.body)
    makers.add(value)
    for op in makers:
        if is_own(op):
            own[op] = None
            for operand in inputs(op):
                makers.add(operand)
    made = {op.result for op in own}
    leaves = [v for op in own for v in inputs(op) if v not in made] if own else [value]
    known = {c.next for c in scan.carries if c.result is not result} | {
        s.param for s in scan.streams
    }
    # Condition 2 of carry-last-rows.
    is_known = all(v in known or not scan.body.defines(v) for v in leaves)
    return tuple(reversed(own)) if is_known else None
