"""Carry through an inner loop only the rows of an array that it touches.

Before::

    d = scan[8] carry(d=z) xs(i=iota8) {
      d1 = scan[4] carry(c=d) xs(j=iota4) {
        y = dynamic_slice c i j
        m = mul y 2.0
        c1 = dynamic_update_slice c m i j
        yield carry(c1)
      }
      yield carry(d1)
    }

After::

    d = scan[8] carry(d=z) xs(i=iota8) {
      row = dynamic_slice d i 0
      row1 = scan[4] carry(c=row) xs(j=iota4) {
        y = dynamic_slice c 0 j
        m = mul y 2.0
        c1 = dynamic_update_slice c m 0 j
        yield carry(c1)
      }
      d1 = dynamic_update_slice d row1 i 0
      yield carry(d1)
    }

Now each loop moves along one axis, as `stack-carried-updates` requires.

Rows at constants, too: a loop that adds to some slices of a vector carries each slice by itself,
and writes them back after its last step. Sound when

1. the carry is read and written by windows only (`jaxpr_opt.analysis.carried.buffers`);
2. along one axis, every window starts at the same affine function of outer steps, plus an affine
   one of the loop's own steps, and is in range at every step, as in ``xs[i * 64 + j]``; if at
   constants, in one of several disjoint blocks of rows;
3. along the other axes it may be anywhere; but a gather or scatter stays one unless that is known,
   because it may be out of range, and elsewhere in each row of a batch.

Cost: the rows are copied out and back, so the loop must touch about as many elements. An array that
XLA updates in place stays, unless only the rows of the last steps are read of it: then it need not
exist. Rows at constants are carried where XLA goes through all of the array for each of them, and
that takes longer than to carry one more: on a CPU, from jax 0.12 on only in a loop that does not
become one function (40 slices of a vector of 10 KB, 500 steps: 80 ms before, 21 ms after, 39 ms in
plain JAX; beside a product of 16 by 64 numbers 5.2 and 2.4 ms). They are left unchanged if each is
one element. An array of few rows, such as the fields of a simulation, is carried row by row if XLA
copies it (3 fields of 20,000 numbers: 0.04 to 0.2 of the time, the gradient 0.3); if windows move
along another axis, `stack-carried-updates` takes its rows apart.
Source: row by row, then element by element: https://github.com/jax-ml/jax/issues/10197.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from jaxpr_opt.analysis.carried.blocks import Touched, moving_rows, standing_blocks
from jaxpr_opt.analysis.carried.buffers import (
    Buffer,
    buffer,
    copied_by,
    is_in_place,
    is_made_by_a_loop,
    is_read_outside,
)
from jaxpr_opt.analysis.carried.sliding_costs import is_partly_written
from jaxpr_opt.analysis.steps.one_function import unknown_op
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.renaming import original
from jaxpr_opt.builders.carried.narrow_carry import carry_blocks
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import goes_through_at_constants
from jaxpr_opt.ir.graph import Carry, Op, Scan
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Narrow(Match):
    """A carried array of which a loop touches some rows only."""

    op: Scan
    touched: Touched


@dataclass(frozen=True)
class NarrowCarriedArrays(Pass[Narrow]):
    """A whole array carried through an inner loop -> the rows that it touches."""

    name: ClassVar[str] = "narrow-carried-arrays"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    even_in_place: bool = False
    """Also where XLA does as well."""

    def find(self, op: Scan) -> Iterator[Narrow]:
        for carry in op.carries:
            if not carry.param.shape or carry.is_invariant:
                continue
            found = buffer(op, carry)
            if isinstance(found, str) or not found.accesses:  # (1)
                continue
            blocks = moving_rows(op, found) or standing_blocks(found)  # (2)
            if blocks:
                touched = Touched(found, blocks)
                yield Narrow(op, _says(touched), touched, **_remark(found))

    def refuse(self, match: Narrow) -> str | None:
        scan, rows = match.op, match.touched
        if len(rows.blocks) > 1 and all(prod(rows.shape(b.size)) == 1 for b in rows.blocks):
            return "elements would be carried one by one"
        window = prod(rows.shape(rows.size))
        touched = scan.length * sum(prod(access.sizes) for access in rows.buffer.accesses)
        if not cost_model().is_dense(touched, window):
            return "a row is much larger than the part that the loop reads and writes"
        return None if self.even_in_place else _why_left_in_place(rows)

    def rewrite(self, match: Narrow, rw: Rewriter) -> None:
        carry_blocks(match.touched, rw)


def _remark(found: Buffer) -> dict[str, Any]:
    """The fields of a match for reports: an array that is copied, or made anew for each run of the
    loop.
    """
    carry, at = found.carry, copied_by(found)
    if uniform(carry.init) == 0:
        return {"about": carry.result, "at": found.accesses[-1].op, "waste": "zeros"}
    return {"about": carry.param, "at": at, "waste": None if at is None else "copy"}


def _says(touched: Touched) -> str:
    param = touched.buffer.carry.param
    apart = f", in {len(touched.blocks)} blocks" if len(touched.blocks) > 1 else ""
    name = param.name or param.type
    return f"{touched.size} of {param.shape[touched.axis]} rows of {name} are carried{apart}"


def _why_left_in_place(touched: Touched) -> str | None:
    """Why the array is better left as it is: XLA updates it in place, and it has to be there."""
    found = touched.buffer
    name = found.carry.param.name or "the array"
    if not touched.blocks[0].start.steps:
        stays = _is_as_good(touched) if touched.is_of_few_rows else not _is_gone_through(found)
        if stays:
            return f"XLA adds to windows of {name} in place"
        if not cost_model().outlasts(found.carry.param.nbytes, cost_model().started(1)):
            return f"{name} is written as fast as one more array is carried"
    outer = _outermost(found)
    if outer is found.carry or not is_in_place(found):
        return None
    held = [rows.held for rows in touched.blocks]
    unheld = len(held) > 1 or is_read_outside(outer.result, touched.axis, held[0])
    if unheld or is_made_by_a_loop(outer.init):
        return f"XLA already updates {name} in place"
    return None


def _is_as_good(touched: Touched) -> bool:
    """Whether XLA updates an array of few rows in place, or does so behind a fence: not where whole
    rows are written.
    """
    found = touched.buffer
    return copied_by(found) is None or is_partly_written(found, touched.axis)


def _is_gone_through(found: Buffer) -> bool:
    """Whether XLA goes through all of the array for each window at a constant."""
    return goes_through_at_constants(in_one_function=unknown_op(found.loop) is None)


def _outermost(found: Buffer) -> Carry:
    """The array of the outermost loop that only hands it on to the inner one."""
    carry, loop = found.carry, found.loop
    while isinstance(outer := loop.parent, Scan):
        handed = outer.carry_of(original(carry.init))
        if handed is None or original(handed.next) is not carry.result:
            break
        carry, loop = handed, outer
    return carry
