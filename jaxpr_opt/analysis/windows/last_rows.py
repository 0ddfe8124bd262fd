"""Stacks of which the last step's row alone is read; streams that are zero but for the first's."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.analysis.windows.scatter_chains import Piece, added
from jaxpr_opt.ir.graph import Carry, Makers, Op, Scan, Stack, Stream, Value
from jaxpr_opt.ir.inputs import inputs
from jaxpr_opt.ir.traits import SUMS, can_move


@dataclass(frozen=True, slots=True, eq=False)
class LastRow:
    """A stack all of whose readers read the row of the last step."""

    stack: Stack
    reads: tuple[Access, ...]
    after: tuple[Op, ...] | None
    """What computes the row from what is known after the loop, in order; None if it is carried."""


@dataclass(frozen=True, slots=True, eq=False)
class FirstRow:
    """A stream whose rows are zero but for that of the first step; `plus` adds them to a carry."""

    stream: Stream
    carry: Carry
    plus: Op


def last_row(scan: Scan, stack: Stack) -> LastRow | None:
    """How a loop gets by without a stack; None if other rows of it are read."""
    place = 0 if scan.reverse else scan.length - 1
    reads = []
    for use in stack.result.uses:
        read = access(use.op) if use.op.name in {"dynamic_slice", "slice"} else None
        # Condition 1 of carry-last-rows.
        if read is None or use.position != 0 or not _is_row(read, place):
            return None
        reads.append(read)
    return LastRow(stack, tuple(reads), _after(scan, stack)) if reads else None


def first_row(scan: Scan, stream: Stream) -> FirstRow | None:
    """Which carry the first row of a stream is added to; None if there are others, or readers."""
    if len(stream.param.uses) != 1:
        return None
    ((plus, position),) = stream.param.uses
    if plus.name not in SUMS or plus.region is not scan.body:
        return None
    param = plus.operands[1 - position]
    carry = scan.carry_of(param) if param.owner is scan.body else None
    # Condition 4 of carry-last-rows.
    if carry is None or len(param.uses) != 1 or plus.result.aval != param.aval:
        return None
    chain = added(stream.operand)
    place = scan.length - 1 if scan.reverse else 0
    # Condition 4 of carry-last-rows.
    if not chain.starts_at_zero or not all(_adds_row(link, place) for link in chain.links):
        return None
    return FirstRow(stream, carry, plus)


def _adds_row(link: object, place: int) -> bool:
    """Whether something is added to the row at a place only."""
    extent = next(iter(link.window), None) if isinstance(link, Piece) else None
    if extent is None or extent.start is None or not extent.start.is_constant:
        return False
    return bool(extent.start.offset == place and extent.size == 1)


def _is_row(read: Access, place: int) -> bool:
    row = read.window[0]
    is_known = row.start is not None and row.start.is_constant
    return is_known and row.size == 1 and row.start is not None and row.start.offset == place


def _after(scan: Scan, stack: Stack) -> tuple[Op, ...] | None:
    """The ops that only the row needs, if what they read is known after the loop."""
    own: dict[Op, None] = {}
    position = scan.results.index(stack.result)

    def is_own(op: Op) -> bool:
        users = ((scan.body.ancestor(use.op), use) for use in op.result.uses)
        return can_move(op) and all(
            use.position == position if around is scan.body.terminator else around in own
            for around, use in users
        )

    makers = Makers(scan.body)
    makers.add(stack.value)
    for op in makers:
        if is_own(op):
            own[op] = None
            for value in inputs(op):
                makers.add(value)
    made = {op.result for op in own}
    leaves = [v for op in own for v in inputs(op) if v not in made] if own else [stack.value]
    # Condition 2 of carry-last-rows.
    return tuple(reversed(own)) if all(_is_known_after(v, scan) for v in leaves) else None


def _is_known_after(value: Value, scan: Scan) -> bool:
    """Whether what a value is in the last step is known after a loop."""
    if not scan.body.defines(value) or scan.stream_of(value) is not None:
        return True
    return any(carry.next is value for carry in scan.carries)
