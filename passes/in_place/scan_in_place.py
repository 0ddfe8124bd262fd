"""Read a loop's rows directly from the array they are sliced from, and write its stack directly
into the array it becomes a part of.

Before::

    xs = slice[1:] a
    last, ys = scan[7] carry(c=z) xs(x=xs) {
      ...
      yield carry(c1) ys(y)
    }
    b = concatenate ys last

After::

    last, n, rows = scan[7] carry(c=z, i=0, r=undefined) {
      x = dynamic_slice a (add i 1)
      ...
      yield carry(c1, add i 1, dynamic_update_slice r y i)
    }
    b = dynamic_update_slice rows last 7

It saves the copy of the streamed part of an array, and the copy of the stack into the
concatenation. A streamed iota is not made either. Rows may lie along any axis: `vmap` moves the
rows of a batch to the second.

Sound when

1. what is streamed is rows of an array in order, or in reverse order: slices along one axis with
   stride 1, reversals of it, and transposes that move it; what is stacked becomes such rows; of an
   iota, rows are their numbers;
2. only the loop reads them, and each array on the way from the stack to the larger one is read by
   nothing else: reversals, transposes, one concatenation along the axis, or one update of whole
   rows at a known place;
3. a step has no effects (an optimization barrier has none), and the loop does not ask to be
   unrolled;
4. nothing differentiates the loop any more (the final phase): the transpose of a row that is read
   is an array of zeros with a row in it.

Cost: saves the memory and the time of the copies; a few numbers of rows take none. The array stays
alive as long as the loop runs, so it must be alive anyway: a parameter, or read again after the
loop has begun. Or it takes the place of its copy, if it is not much larger and is in memory before:
what a loop or a product made, or what is transposed, which XLA does in one array to copy it into
another. What is in the array beside the stack must be smaller than the stack, or the loop would
hold more than before; an array that the loop reads is not written to. XLA keeps other arrays in the
room of a result until that is written: it stays free if the program would take more, and in the
second half of a gradient for what the first has made. A row whose parts are many, and far from each
other, is moved faster by a transpose of the array; so is one of numbers that lie apart, if XLA
would compute functions of them one by one, or if they take each other's places in the cache.
Source: a window that slides over a carried buffer, as `stack-carried-updates` leaves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.in_place.row_views import (
    PlaceInArray,
    StepRows,
    are_few_numbers,
    place_of_stack,
    rows_of_stream,
)
from jaxpr_opt.bridge.parameters import unroll_of
from jaxpr_opt.bridge.slicing import write_row, write_run
from jaxpr_opt.builders.steps.step_rows import row_of_step
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.insight.weighing import takes_more
from jaxpr_opt.ir.graph import Carry, Op, Phase, Scan, Stack, Value, is_sized
from jaxpr_opt.ir.nesting import program_of
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import may_skip_steps


@dataclass(frozen=True, slots=True, eq=False)
class CopiedStacks(Match):
    """A scan whose streams are parts of arrays, or whose stacks become parts of arrays."""

    op: Scan
    sources: dict[Value, StepRows]
    """By parameter of the body."""
    places: dict[Value, PlaceInArray]
    """By stack."""


@dataclass(frozen=True)
class ScanInPlace(Pass[CopiedStacks]):
    """Streams that are slices, stacks that are concatenated -> read and written in place."""

    name: ClassVar[str] = "scan-in-place"
    phase: ClassVar[Phase] = "final"  # (4)
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[CopiedStacks]:
        if not all(is_sized(v.shape) for v in (*op.operands, *op.results)):
            return
        sources = {s.param: rows for s in op.streams if (rows := rows_of_stream(s, op)) is not None}
        places = _places(op)
        read = [s.operand for s in op.streams if s.param in sources]
        for written in (places, {}) if read and places else (places,):
            if copies := [*read, *written]:
                names = ", ".join(value.label for value in copies)
                yield CopiedStacks(
                    op, f"the loop reads or writes rows of {names} in place", sources, written
                )

    def refuse(self, match: CopiedStacks) -> str | None:
        scan = match.op
        if unroll_of(scan) != 1:
            return "the scan asks to be unrolled"  # (3)
        if not may_skip_steps(scan):
            return "a step has effects"  # (3)
        if not match.places and are_few_numbers(match.sources, scan):
            return "making the numbers of the rows takes no longer than a step"
        if any(p.is_result for p in match.places.values()) and _takes_more(scan):
            return "until the loop ends, a larger array takes the place of the result in memory"
        return None

    def rewrite(self, match: CopiedStacks, rw: Rewriter) -> None:
        scan = match.op
        _move(scan, match.sources, match.places, rw)


def _places(scan: Scan) -> dict[Value, PlaceInArray]:
    """The arrays that the stacks become parts of."""
    found = ((s.result, place_of_stack(s, scan)) for s in scan.stacks)
    return {result: place for result, place in found if place is not None}


def _takes_more(scan: Scan) -> bool:
    """Whether other arrays need the room of the results that the rows would be written to."""
    program, write = program_of(scan), lambda op, rw: _move(op, {}, _places(op), rw)
    return program is None or program.is_backward or takes_more(scan, write)


def _move(
    scan: Scan, sources: dict[Value, StepRows], places: dict[Value, PlaceInArray], rw: Rewriter
) -> None:
    """Read rows where they are, and write them where they are wanted."""
    counter = _counter(scan, rw)
    streams = []
    for stream in scan.streams:
        rows = sources.get(stream.param)
        if rows is None:
            streams.append(stream)
        elif stream.param.uses:
            assert scan.body.first is not None
            row = row_of_step(rows, counter.param, scan.body.first, rw)
            rw.replace(stream.param, row)
    stacks = [s for s in scan.stacks if s.result not in places]
    found = {s: places[s.result] for s in scan.stacks if s.result in places}
    buffers = [_written(scan, s, place, counter, rw) for s, place in found.items()]
    for place, buffer in zip(found.values(), buffers, strict=True):
        _put_together(place, buffer.result, rw)
    rw.set_scan(scan, carries=[counter, *scan.carries, *buffers], streams=streams, stacks=stacks)


def _counter(scan: Scan, rw: Rewriter) -> Carry:
    """The number of the row that a step is about, as a carry."""
    first = rw.scalar(scan.length - 1 if scan.reverse else 0, np.int32)
    param, result = rw.new_value(first.aval, "row"), rw.new_value(first.aval)
    onward = lax.sub if scan.reverse else lax.add
    following = rw.insert(lambda i: onward(i, np.int32(1)), param, before=scan.body.terminator)
    return Carry(first, param, following, result)


def _written(scan: Scan, stack: Stack, place: PlaceInArray, counter: Carry, rw: Rewriter) -> Carry:
    """The array that a stack becomes a part of, as a carry to which each step writes its row."""
    rows, end = place.rows, scan.body.terminator
    aval = rows.array.aval
    start = place.start or rw.undefined(aval, before=scan)
    param = rw.new_value(aval, "rows")
    write = lambda whole, row, i: write_row(whole, row, rows.number(i), rows.axis)  # noqa: E731
    after = rw.typed(write, aval, param, stack.value, counter.param, before=end)
    return Carry(start, param, after, rw.new_value(aval))


def _put_together(place: PlaceInArray, buffer: Value, rw: Rewriter) -> None:
    """Write the other parts of an array beside the rows that are in it, in its place."""
    last, axis = place.path[-1], place.rows.axis
    for part, first, order in place.others:
        write = partial(_beside, first=first, axis=axis, order=order)
        buffer = rw.typed(write, buffer.aval, buffer, part, before=last)
    rw.replace(last.results[0], buffer)
    for op in reversed(place.path):
        rw.erase(op)


def _beside(
    whole: jax.Array, part: jax.Array, *, first: int, axis: int, order: tuple[int, ...]
) -> jax.Array:
    """The array with a part of it written at a row."""
    return write_run(whole, lax.transpose(part, order), first, axis)
