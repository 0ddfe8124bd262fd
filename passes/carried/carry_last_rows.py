"""Carry what the last step stacks, where no other row of the stack is read.

Before::

    h, ys = scan[8] carry(h=h0) xs(x=xs) {
      h1 = f h x
      y = dot_general h1 w
      yield carry(h1) ys(y)
    }
    r = slice[7:8] ys

After::

    h = scan[8] carry(h=h0) xs(x=xs) {
      h1 = f h x
      yield carry(h1)
    }
    y = dot_general h w
    r = reshape y

The outputs of a recurrent layer of which a classifier reads the last; the trajectory of a
simulation whose end is wanted. In the gradient, the cotangents of all rows are zeros but for the
last: a loop back reads zeros in each step, and adds them. Sound when

1. the stack: all its readers read slices of the row of the last step;
2. the ops that only the row needs, or only a carry that no step reads, move after the loop if they
   read what the loop carries to the end, rows of streams, and outer values, and have no effects;
   otherwise the loop carries the row: no step reads it, so that it may start as anything;
3. the loop takes a step;
4. a stream: its rows are zero but for that of the first step, and a step only adds it to carries
   that it reads nothing else of, or something that is linear in it: c + 0 is c, up to the sign of
   zero. Then the carries start with that. What is linear in zero is zero only in a loop of
   cotangents, whose zeros are symbolic, and what the first step computes has no effects.

Cost: a row instead of all; what is computed of it, once. It fires if the stack exceeds a cache
line.
Source: `outputs[-1]` of `flax.linen.RNN`, `haiku.dynamic_unroll` and their like.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.carried.last_rows import (
    FirstRow,
    LastRow,
    LastValue,
    first_row,
    last_row,
    last_value,
)
from jaxpr_opt.builders.carried.last_rows import only_row, only_value, started
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Scan
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class StackedLast(Match):
    """A stack of which the last row is read."""

    op: Scan
    found: LastRow


@dataclass(frozen=True, slots=True, eq=False)
class Carried(Match):
    """A carry that no step reads."""

    op: Scan
    found: LastValue


@dataclass(frozen=True, slots=True, eq=False)
class Streamed(Match):
    """A stream of zeros but for the first row."""

    op: Scan
    found: FirstRow


Found = StackedLast | Carried | Streamed


@dataclass(frozen=True)
class CarryLastRows(Pass[Found]):
    """A stack of which the last row is read -> that row, carried."""

    name: ClassVar[str] = "carry-last-rows"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[Found]:
        if op.length == 0:  # (3)
            return
        for stack in op.stacks:
            last = last_row(op, stack)  # (1, 2)
            if last is not None:
                of_all = bytes_text(stack.result.nbytes)
                says = f"{stack.value.label}: the last row is carried, {of_all} are not stacked"
                yield StackedLast(op, says, last, about=stack.result)
        for carry in op.carries:
            value = last_value(op, carry)  # (2)
            if value is not None:
                says = f"{carry.next.label}: no step reads it, computed once after the loop"
                yield Carried(op, says, value, about=carry.result)
        for stream in op.streams:
            first = first_row(op, stream)  # (4)
            if first is not None:
                of_all = bytes_text(stream.operand.nbytes)
                says = f"{stream.param.label}: the first row starts the loop, {of_all} are not read"
                yield Streamed(op, says, first, about=stream.operand)

    def refuse(self, match: Found) -> str | None:
        if isinstance(match, Carried):
            is_free = cost_model().run(match.found.after) <= cost_model().started(1)
            return "it takes no longer than starting an op" if is_free else None
        assert match.about is not None
        if cost_model().is_no_line(match.about.nbytes):
            return f"{match.about.label} is small"
        return None

    def rewrite(self, match: Found, rw: Rewriter) -> None:
        scan = match.op
        if isinstance(match, StackedLast):
            only_row(match.found, scan, rw)
        elif isinstance(match, Carried):
            only_value(match.found, scan, rw)
        else:
            started(match.found, scan, rw)
