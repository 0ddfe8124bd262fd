"""Stack what enters a shift register, not the register.

Before::

    b, bs = scan[100] carry(b=b0) xs(x=xs) {
      y = f b x
      n = concatenate (slice[1:] b) y
      yield carry(n) ys(b)
    }
    g = scan[100, reverse] carry(c=ct) xs(r=bs) { h c r }

After::

    b, ys = scan[100] carry(b=b0) xs(x=xs) {
      y = f b x
      n = concatenate (slice[1:] b) y
      yield carry(n) ys(y)
    }
    a = concatenate b0 ys
    g = scan[100, reverse] carry(c=ct) xs(i=iota) {
      r = dynamic_slice[slice_sizes=(8,)] a i
      h c r
    }

The last frames of a video, the lags of an autoregressive model, a delay line, the taps of a filter,
the window of an attention: a step appends a row to them, and the gradient stores all rows of them
in each step. Sound when

1. in every step a part of the carry moves along one axis, from one end to the other, unchanged:
   slices of whole rows are put together, or whole rows are written at a fixed place; what enters at
   the end that is left may be anything;
2. the stack is read only row by row, in loops of as many steps, in either order; enclosing loops
   may stack it again, and then they stack what the register starts with, too;
3. an index can number all rows;
4. the shapes are numbers;
5. what is stacked is the register, or what elementwise ops make of it, of the same for every row
   and in every step, wherever the row is (a function that XLA rounds by place is left alone); no op
   that jumps, as a comparison, reads what another op has computed, and none adds a product, which
   XLA may round otherwise in another place (`jaxpr_opt.analysis.values.rounding`).

A step that shifts the register is never skipped, as it would have to leave the register alone.

Cost: the loop stores rows that enter, or nothing if they are streamed or stacked anyway. They are
copied behind the rows that the register starts with; `scan-in-place` saves the copy of a new stack.
A window is read in the time of a row of a stack, or faster, as it stays in the cache: 0.4 to 1.0 of
the time along the first axis. The rows come first in the array, whatever axis of the register they
are along. What ops make of the rows that the register starts with is computed once more before the
loop. It fires if the new arrays are smaller by a factor. `narrow-residuals` knows the price,
and stores a register instead of what is made of it.
Source: the residuals of `lax.scan` are those of its body, each by itself; a step does not know that
the next one holds most of them, https://github.com/jax-ml/jax/pull/4517.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.register_stacks import (
    State,
    registers,
    why_stacked_whole,
    window_readers,
)
from jaxpr_opt.builders.residuals.register_windows import read_windows
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Scan, Stack
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class StackedRegister(Match):
    """A stack of a shift register."""

    op: Scan
    stack: Stack
    state: State


@dataclass(frozen=True)
class StackEnteringRows(Pass[StackedRegister]):
    """Stack of a shift register -> stack of what enters it, windows of which are read."""

    name: ClassVar[str] = "stack-entering-rows"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[StackedRegister]:
        known = registers(op) if op.stacks else {}
        for stack in op.stacks if known else ():
            if stack.value in known and stack.result.uses:
                state = known[stack.value]
                name = state.register.carry.param.label
                says = f"{name} shifts by {state.register.size}: what enters is kept, once"
                yield StackedRegister(op, says, stack, state, about=stack.result)

    def refuse(self, match: StackedRegister) -> str | None:
        found = window_readers(match.stack.result)  # (2)
        return found if isinstance(found, str) else why_stacked_whole(match.state)  # (3)

    def rewrite(self, match: StackedRegister, rw: Rewriter) -> None:
        found = window_readers(match.stack.result)
        assert not isinstance(found, str)
        read_windows(match.state, match.stack, found, rw)
