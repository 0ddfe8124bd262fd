"""Carry the row that is read of a stack, where the data say which.

Before::

    h, ys = scan[100] carry(h=h0) xs(x=xs) {
      y = f h x
      yield carry(y) ys(y)
    }
    r = dynamic_slice[sizes=(1, 64)] ys i 0

After::

    p = clamp 0 i 99
    h, o = scan[100] carry(h=h0, o=zeros) xs(x=xs, t=iota) {
      y = f h x
      o1 = select_n (eq p t) o y
      yield carry(y, o1)
    }
    r = dynamic_slice[sizes=(1, 64)] (reshape o) 0 0

The output of a recurrent network at the last word of each sentence of a batch,
``outputs[lengths - 1, jnp.arange(len(lengths))]``, ``jnp.take_along_axis``, or ``outputs[n - 1]``
under `vmap`; the state of a simulation at a time that is given. Before JAX differentiates, so that
the cotangents of the rows are carried back, too, not zeros for all rows. Sound when

1. all readers of the stack read one row of it, by a slice or a gather;
2. which one is known before the loop, or can be;
3. a gather reads one row for each row of a batch: for each row along an axis of the stack's rows
   that it is batched over, or whose numbers are a component of its index.

A place out of range is clamped in the loop, and stays out of range for the read, which fills the
row in, or leaves its gradient out.

Cost: a select of a row in each step, fused with what makes the row, which is no slower than storing
it (0.85 of the time, 0.02 of the memory, 256 steps of 32 by 64 numbers). It fires if a row is a
cache line, and the loop takes more than two steps for each reader and skips none.
Source: `flax.linen.RNN`, `last_carry` of padded sequences, https://github.com/google/flax/issues/1240.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.carried.picked_rows import PickedRows, picked_rows
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.carried.picked_rows import carry_rows
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Scan, is_sized
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class Picked(Match):
    """A stack of which rows are picked."""

    op: Scan
    found: PickedRows


@dataclass(frozen=True)
class CarryPickedRows(Pass[Picked]):
    """A stack of which the data say which row is read -> that row, carried."""

    name: ClassVar[str] = "carry-picked-rows"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[Picked]:
        for stack in op.stacks if is_sized((op.length,)) else ():
            is_row = dtypes.is_of_bytes(stack.value.dtype) and is_sized(stack.value.shape)
            found = picked_rows(op, stack) if is_row else None  # (1, 2, 3)
            if found is not None:
                of_all = bytes_text(stack.result.nbytes)
                says = f"one row of {stack.value.label} is read: it is carried, not {of_all}"
                yield Picked(op, says, found, about=stack.result)

    def refuse(self, match: Picked) -> str | None:
        scan, found = match.op, match.found
        if cost_model().is_no_line(found.stack.value.nbytes):
            return f"a row of {found.stack.value.label} is small"
        if cost_model().is_most(len(found.picks), scan.length):
            return "most of its rows may be read"
        if find_skip(scan) is not None:
            return "the loop skips whole steps"
        return None

    def rewrite(self, match: Picked, rw: Rewriter) -> None:
        carry_rows(match.found, match.op, rw)
