"""Compute once the rows that each step computes of its number and of places.

Before::

    y = scan[600] carry(c=0, y=y0) {
      i = sub c const                  # i[p] = step - p
      j = select_n (lt i 0) i (add i 600)
      g = gather[slice_sizes=(1,)] w j
      h = reduce_sum (mul g y)
      ...
    }

After::

    i = ...                            # 599, 598, ..., -599
    j = select_n (lt i 0) i (add i 600)
    g = gather[slice_sizes=(1,)] w j
    y = scan[600] carry(c=0, y=y0) xs(step=...) {
      d = dynamic_slice g (599 - step)
      h = reduce_sum (mul d y)
      ...
    }

What a step makes of the distances between its number and places is what the step before made, moved
on by a place: weights of a history (``w[t - s]``, ``(t - s) ** a``), kernels of an integral
equation, a bias by relative position, the rows of a Toeplitz or circulant matrix
(``c[(i - j) % n]``, ``c[abs(i - j)]``). All of them are windows of one array. Sound when

1. all that varies in what makes the rows are whole numbers that are affine in the place along one
   axis and in the number of the step, and move on by the same number of places in a step;
2. all else is from outside of the loop, and is the same for all rows;
3. none of the ops jumps where what it reads is rounded otherwise: XLA may do so before the loop;
4. shapes and the number of steps are numbers, not symbols.

Cost: reads at places, and functions, for as many rows as differ, not for those of all steps; the
array is in memory as long as the loop runs, at most a few times what a step made, or little. A step
that reads a window computes no places. It waits for the gradient: else the cotangents of the array
would be added up in another order than those of what it is made of.
Source: the memory of fractional derivatives (Diethelm, Ford, Freed, Nonlinear Dynamics 29, 2002).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.rows.shifted_rows import ShiftedRows, shifted_rows
from jaxpr_opt.analysis.rows.streamed_rows import is_to_be_differentiated
from jaxpr_opt.builders.rows.shifted_rows import read_shifted
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import Op, Phase, Scan
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class Shifted(Match):
    """A loop, and rows that each of its steps makes."""

    op: Scan
    found: ShiftedRows


@dataclass(frozen=True)
class ComputeShiftedRows(Pass[Shifted]):
    """Ops on numbers that move on in each step -> once, before the loop, and a window of that."""

    name: ClassVar[str] = "compute-shifted-rows"
    phase: ClassVar[Phase] = "differentiated"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    after: ClassVar[tuple[After, ...]] = (
        After("join-consecutive-rows", "rows that are in range are a window as they are"),
    )

    def find(self, op: Scan) -> Iterator[Shifted]:
        for found in shifted_rows(op):  # (1-4)
            says = f"{found.value.label}: windows of {bytes_text(found.nbytes)}, made once"
            yield Shifted(op, says, found, about=found.value)

    def refuse(self, match: Shifted) -> str | None:
        found = match.found
        if is_to_be_differentiated(match.op):
            return "the cotangents of what the rows are made of would be added up in another order"
        width, length, steps = found.width, found.length, found.scan.length
        if not cost_model().is_less_shifted(found.ops, found.value, width, length, steps):
            return "making the rows in each step takes no longer, or less memory"
        return None

    def rewrite(self, match: Shifted, rw: Rewriter) -> None:
        rw.replace(match.found.value, read_shifted(match.found, rw))
