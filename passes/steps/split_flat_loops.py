"""Make a loop over rows and cells of one loop over all cells of a table.

Before::

    d = scan[n * m] carry(d=z) xs(k=iota) {
      i = div k m
      j = rem k m
      y = dynamic_slice d i j
      ...
      d1 = dynamic_update_slice d x i j
      yield carry(d1)
    }

After::

    d = scan[n] carry(d=z) xs(k=reshape iota) {
      d1 = scan[m] carry(d=d) xs(k=k) { ... }
      yield carry(d1)
    }

In the nest each index is affine in the steps of one loop, as `narrow-carried-arrays` and
`stack-carried-updates` require: the first lets the inner loop carry a row, the second streams its
cells.  Sound when

1. the loop takes ``n * m`` steps and does not ask to be unrolled: a nest takes the same steps in
   the same order.

Cost: a loop more.  So it fires if the loop carries a buffer that XLA would copy, or that is
differentiated, and then, and only then, knows where all windows of it are; and if one of them moves
in the inner loop. A ring (``b[i % 2]``) has to be so large that copying it in all steps of the
inner loop takes longer than starting that: two small ones made the gradient of 50 steps 1.5 times
as slow and 1.3 times as large. Rows as large as its own must not be stacked, as each of the two
loops would move them: under `vmap` that took three times the time of one loop, and the memory of
all rows. And it waits until nothing differentiates the loop: in a gradient,
`undo-carried-writes` stores less (12 programs: 0.45 to 0.95 of the time and 0.5 to 0.98 of the
memory of two loops, jax 0.12). In a nest that adds to ``b[i // 16]`` the gradient of a step takes
1.1 to 1.4 times as long as in one loop, and under `vmap` the rows of the two loops are transposed.
Source: `collapse-loops` and this are the two directions of loop coalescing (Polychronopoulos,
1987).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.carried.buffers import Buffer, buffer, is_in_place
from jaxpr_opt.analysis.residuals.cuts import residuals
from jaxpr_opt.analysis.steps.flat_loops import nest_of, row_lengths, starts_in
from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.analysis.values.induction import StepsOfNest
from jaxpr_opt.bridge.parameters import unroll_of
from jaxpr_opt.builders.steps.split_loop import split
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Scan
from jaxpr_opt.ir.nesting import program_of
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Flat(Match):
    """A loop over all cells of a table."""

    op: Scan
    lengths: list[int]
    """Of a row, a plane, ..."""


@dataclass(frozen=True)
class SplitFlatLoops(Pass[Flat]):
    """One loop over all cells -> a loop over rows of a loop over cells."""

    name: ClassVar[str] = "split-flat-loops"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    needs: ClassVar[frozenset[str]] = frozenset({"div", "rem"})
    all_rings: bool = False
    """Also rings of a few rows, and of loops that may be differentiated."""

    def find(self, op: Scan) -> Iterator[Flat]:
        lengths = row_lengths(op)
        if lengths:
            sizes = [loop.length for loop in nest_of(op, lengths)]
            nested = " times ".join(map(str, sizes))
            says = f"{op.length} steps of one loop become {nested} steps of {len(sizes)}"
            yield Flat(op, says, lengths)

    def refuse(self, match: Flat) -> str | None:
        scan = match.op
        if unroll_of(scan) != 1:
            return "the scan asks to be unrolled"  # (1)
        carried = [buffer(scan, carry) for carry in scan.carries if carry.param.shape]
        buffers = [found for found in carried if isinstance(found, Buffer) and found.accesses]
        unknown = [found for found in buffers if not all(a.is_located for a in found.accesses)]
        if not unknown:
            return "no buffer is read or written at such an index"
        nest = nest_of(scan, match.lengths)
        places = {found: starts_in(found.accesses, scan, nest) for found in unknown}
        told = {found: starts for found, starts in places.items() if starts is not None}
        if not told:
            return "the places of the windows would be unknown in two loops, too"
        if all(is_in_place(found) for found in told):
            return "XLA already updates the buffer in place"
        starts = [start for each in told.values() for start in each]
        if not any(_moves(start, scan, nest) for start in starts):
            return "windows would stay where they are in the inner loop"
        outermost, *_, inner = nest
        is_ring = all(outermost not in start.steps for start in starts)
        ring = sum(found.carry.param.nbytes for found in told)
        stacked = sum(stack.value.nbytes for stack in scan.stacks if stack.result.uses)
        is_asked = is_ring and not self.all_rings
        if is_asked and _may_be_undone(scan):
            return "writes to a ring are undone for less than two loops store"
        if is_asked and cost_model().is_noticed(inner.length * stacked, ring):
            return "the rows that the inner loop stacks would be copied into those of the outer one"
        if is_asked and cost_model().is_hidden(inner.length * ring):
            return "starting an inner loop takes longer than copying a ring of a few rows in it"
        return None

    def rewrite(self, match: Flat, rw: Rewriter) -> None:
        loop, taken = match.op, 1
        for steps in match.lengths:
            loop, taken = split(loop, steps // taken, rw), steps


def _may_be_undone(scan: Scan) -> bool:
    """Whether a loop may be differentiated, hands over residuals, or is a transposed one."""
    program = program_of(scan)
    is_final = program is None or program.phase == "final"
    return not is_final or scan.source.transposed or bool(residuals(scan, nests=True))


def _moves(start: Affine, scan: Scan, nest: StepsOfNest) -> bool:
    """Whether a window moves in the inner loop of a nest."""
    *_, inner = nest
    return not start.steps.keys().isdisjoint({scan, inner})
