"""Read the rows of a loop where they are, and write those it stacks to where they are wanted.

Before::

    xs = slice[1:] a
    last, ys = scan[7] carry(c=z) xs(x=xs) {
      ...
      yield carry(c1) ys(y)
    }
    b = concatenate ys last

After::

    n, last, rows = while carry(i=0, c=z, r=undefined) { lt i 7 } {
      x = dynamic_slice a (add i 1)
      ...
      yield carry(add i 1, c1, dynamic_update_slice r y i)
    }
    b = dynamic_update_slice rows last 7

It is the loop that JAX makes of a scan, but for two copies: that of the part of an array that is
streamed, and that of the stack into the array it is a part of.

Sound when

1. what is streamed is rows of an array in order, or in reverse order: slices along the first axis
   with stride 1, and reversals of it;
2. only the loop reads them, and only the concatenation, along the first axis, reads the stack;
3. a step has no effects, and the loop is not unrolled on request;
4. nothing differentiates the loop any more (the final phase): a `while` has no transpose.

Cost: it saves the memory of the copies, and their time.  The array stays for as long as the loop
runs, so it must be there anyway: a parameter, or read again after the loop has begun.  What is
concatenated with the stack must be smaller than the stack, or the loop would hold more than before.
Source: a window that slides over a carried buffer, as `stack-carried-updates` leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from jax import lax

from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir import Op, Phase, Region, Scan, Stack, Stream, Value, is_sized, reads
from jaxpr_opt.parameters import (
    dimension_of,
    dimensions_of,
    limits_of,
    starts_of,
    strides_of,
    unroll_of,
)
from jaxpr_opt.pipeline import Match, Pass
from jaxpr_opt.rewriter import Rewriter
from jaxpr_opt.rows import read_row, write_row
from jaxpr_opt.traits import is_pure


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of an array: in step `i` that with the number ``sign * i + offset``."""

    array: Value
    sign: int = 1
    offset: int = 0

    def before(self) -> Rows | None:
        """The same rows in what the array was sliced or reversed of (1), for the loop only (2)."""
        op = self.array.op
        if op is None or len(self.array.uses) != 1:  # (2)
            return None
        if op.name == "rev" and dimensions_of(op) == (0,):  # (1)
            return Rows(op.operands[0], -self.sign, self.array.shape[0] - 1 - self.offset)
        if op.name == "slice" and _is_of_rows(op):  # (1)
            return Rows(op.operands[0], self.sign, self.offset + starts_of(op)[0])
        return None

    def read(self, array: jax.Array, step: jax.Array) -> jax.Array:
        """The row of a step."""
        number = step if self.sign > 0 else lax.neg(step)
        return read_row(array, lax.add(number, np.int32(self.offset)) if self.offset else number)


@dataclass(frozen=True, slots=True)
class Place:
    """An array that is put together, and the number of the first row of a part of it."""

    whole: Op
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Copied(Match):
    """A scan whose streams are parts of arrays, or whose stacks become parts of arrays."""

    sources: dict[Value, Rows]
    """By parameter of the body."""
    places: dict[Value, Place]
    """By stack."""


@dataclass(frozen=True)
class ScanInPlace(Pass):
    """Streams that are slices, stacks that are concatenated -> read and written in place."""

    name: ClassVar[str] = "scan-in-place"
    phase: ClassVar[Phase] = "final"  # (4)
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Op) -> Iterator[Copied]:
        assert isinstance(op, Scan)
        if not all(is_sized(v.shape) for v in (*op.operands, *op.results)):
            return
        sources = {s.param: rows for s in op.streams if (rows := _rows(s, op)) is not None}
        places = {s.result: place for s in op.stacks if (place := _place(s, op)) is not None}
        copies = [*(s.operand for s in op.streams if s.param in sources), *places]
        if copies:
            names = ", ".join(value.label for value in copies)
            yield Copied(op, f"{names}: read or written in place", sources, places)

    def refuse(self, match: Copied) -> str | None:
        scan = match.op
        assert isinstance(scan, Scan)
        if unroll_of(scan) != 1:
            return "it is unrolled on request"  # (3)
        if any(not is_pure(op) and not op.is_terminator for op in scan.body.walk()):
            return "a step has effects"  # (3)
        return None

    def rewrite(self, match: Copied, rw: Rewriter) -> None:
        scan = match.op
        assert isinstance(scan, Scan)
        first = scan.length - 1 if scan.reverse else 0
        buffers = [rw.undefined(_buffer(match, s), before=scan) for s in scan.stacks]
        inits = [rw.scalar(first, np.int32), *(c.init for c in scan.carries), *buffers]
        body = _body(match, inits, rw)
        loop = rw.new_while(_predicate(scan, inits, rw), body, inits, like=scan, before=scan)
        for old, new in zip(scan.results, loop.results[1:], strict=True):
            place = match.places.get(old)
            if place is None:
                rw.replace(old, new)
            else:
                _put_together(place.whole, old, new, rw)
        rw.erase(scan)


def _rows(stream: Stream, scan: Scan) -> Rows | None:
    """Which rows of an array that is there anyway a stream is."""
    rows = Rows(stream.operand)
    while (earlier := rows.before()) is not None:
        rows = earlier
    copied = rows.array is not stream.operand and _is_noticed(stream.operand)
    return rows if copied and _is_whole(rows.array) and _is_there(rows.array, scan) else None


def _is_noticed(array: Value) -> bool:
    """Whether a copy of an array counts beside what XLA aligns in a loop."""
    return not cost_model().is_quick(array.nbytes)


def _is_of_rows(part: Op) -> bool:
    """Whether a slice is of whole rows, one beside the other."""
    starts, limits, (array,) = starts_of(part), limits_of(part), part.operands
    whole = not any(starts[1:]) and limits[1:] == array.shape[1:]  # (1)
    return whole and all(n == 1 for n in strides_of(part))  # (1)


def _is_whole(array: Value) -> bool:
    """Whether its type says of no mesh that it may be divided over."""
    return bool(array.aval.sharding.mesh.empty)


def _is_there(array: Value, scan: Scan) -> bool:
    """Whether an array is kept until the loop begins, whoever reads it there."""
    if array.op is None:
        return True
    region = scan.region
    if region is None or array.region is not region:
        return False
    users = (region.ancestor(user) for user in array.users)
    return any(user is not None and region.order(user) >= region.order(scan) for user in users)


def _place(stack: Stack, scan: Scan) -> Place | None:
    """What larger array a stack becomes a part of, and which (2)."""
    if not _is_noticed(stack.result):
        return None
    if len(stack.result.uses) != 1:  # (2)
        return None
    ((whole, position),) = stack.result.uses
    if whole.name != "concatenate" or dimension_of(whole) != 0 or whole.region is not scan.region:
        return None  # (2)
    others = [v for v in whole.operands if v is not stack.result]
    if sum(v.nbytes for v in others) >= stack.result.nbytes or not _is_whole(whole.result):
        return None
    return Place(whole, sum(v.shape[0] for v in whole.operands[:position]))


def _buffer(match: Copied, stack: Stack) -> Any:
    """The type of what the rows of a stack are written into."""
    place = match.places.get(stack.result)
    return (stack.result if place is None else place.whole.result).aval


def _predicate(scan: Scan, inits: Sequence[Value], rw: Rewriter) -> Region:
    region = rw.new_region(inits)

    def in_range(i: jax.Array) -> jax.Array:
        return lax.ge(i, np.int32(0)) if scan.reverse else lax.lt(i, np.int32(scan.length))

    rw.set_outputs(region, [rw.insert(in_range, region.params[0], before=region.terminator)])
    return region


def _body(match: Copied, inits: Sequence[Value], rw: Rewriter) -> Region:
    """One step, its rows read and written by their numbers."""
    scan = match.op
    assert isinstance(scan, Scan)
    region, n = rw.new_region(inits), scan.num_carries
    number, end, reading = region.params[0], region.terminator, reads(scan.body.ops)
    rows = []
    for stream in scan.streams:
        source, used = match.sources.get(stream.param), stream.param in reading
        source = Rows(stream.operand) if source is None else source
        row = rw.insert(source.read, source.array, number, before=end) if used else stream.param
        rows.append(row)
    outputs = rw.inline(scan.body, [*region.params[1 : n + 1], *rows], end)
    written = []
    for stack, buffer, row in zip(scan.stacks, region.params[n + 1 :], outputs[n:], strict=True):
        place = match.places.get(stack.result)
        first = 0 if place is None else place.offset
        at = rw.insert(partial(lax.add, np.int32(first)), number, before=end) if first else number
        written.append(rw.typed(write_row, buffer.aval, buffer, row, at, before=end))
    onward = lax.sub if scan.reverse else lax.add
    following = rw.insert(lambda i: onward(i, np.int32(1)), number, before=end)
    rw.set_outputs(region, [following, *outputs[:n], *written])
    return region


def _put_together(whole: Op, stack: Value, buffer: Value, rw: Rewriter) -> None:
    """Write the other parts of an array beside the rows that are in it, in its place."""
    first = 0
    for part in whole.operands:
        if part is not stack:
            start = [first, *(0 for _ in part.shape[1:])]
            write = partial(lax.dynamic_update_slice, start_indices=start)
            buffer = rw.typed(write, buffer.aval, buffer, part, before=whole)
        first += part.shape[0]
    rw.replace(whole.result, buffer)
    rw.erase(whole)
