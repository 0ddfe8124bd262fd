"""Stack what is read of each row, not the row.

Before::

    h, ys = scan[100] carry(h=h0) {
      h1 = f h
      yield carry(h1) ys(h1)
    }
    m = reduce_max[axes=(1,)] ys

After::

    h, ms = scan[100] carry(h=h0) {
      h1 = f h
      m = reduce_max[axes=(0,)] h1
      yield carry(h1) ys(m)
    }

A simulation returns its states, and a compartment is looked at, or the largest number of each; a
language model its scores, and the best word is taken. Sound when

1. all readers of the stack make rows of its rows, in the same order, and these are smaller;
2. an op rounds one row as it rounds many: no sums or products within a row;
3. what else the ops read can be there before the loop, and is the same for each row.

Cost: an op's start in each step, for a row that is neither stored nor loaded. It fires only if what
is read is at most half of the rows, and in the final phase: a gradient reads rows, too. It moves
what takes no longer in a step than for all rows at once: reductions, slices, basic arithmetic. It
does not fire where a loop skips whole steps.
Source: https://github.com/CDCgov/DynODE/issues/326, https://github.com/jax-ml/jax/issues/4968.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.rows.row_readers import RowReader, row_readers
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.builders.rows.mapped_rows import map_rows
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Phase, Scan, Stack, is_sized
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class MappedRows(Match):
    """A stack, and what reads it row by row."""

    op: Scan
    stack: Stack
    readers: tuple[RowReader, ...]


@dataclass(frozen=True)
class MapStackedRows(Pass[MappedRows]):
    """Ops on the rows of a stack -> ops in the loop."""

    name: ClassVar[str] = "map-stacked-rows"
    phase: ClassVar[Phase] = "final"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[MappedRows]:
        if not is_sized((op.length,)) or op.length < 2:
            return
        for stack in op.stacks:
            readers = row_readers(op, stack)  # (1, 2, 3)
            if readers is not None:
                size = bytes_text(_nbytes(readers))
                says = f"a step stacks the {size} that are read of {stack.value.label}, not the row"
                yield MappedRows(op, says, stack, readers, about=stack.result)

    def refuse(self, match: MappedRows) -> str | None:
        scan, stack = match.op, match.stack
        all_bytes, read = stack.result.nbytes, _nbytes(match.readers)
        if cost_model().is_most(read, all_bytes):
            return "what is read is most of each row"
        saved = cost_model().kept(all_bytes - read, all_bytes)
        if saved <= scan.length * cost_model().started(len(match.readers)):
            return "starting the ops in each step takes as long as storing the rows"
        if find_skip(scan) is not None:
            return "the loop skips whole steps"
        return None

    def rewrite(self, match: MappedRows, rw: Rewriter) -> None:
        map_rows(match.op, match.stack, match.readers, rw)


def _nbytes(readers: tuple[RowReader, ...]) -> int:
    return sum(reader.result.nbytes for reader in readers)
