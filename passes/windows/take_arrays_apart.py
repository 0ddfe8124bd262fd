"""Compute windows one by one, where no op needs the array that they are windows of.

Before::

    x1 = scatter x 1 (sin x0)          # x.at[1].set(...)
    r = squeeze (slice[1:2] x1)        # x[1]
    x2 = scatter x1 2 (sin r)
    s = squeeze (slice[2:3] x2)

After::

    r = sin x0
    s = sin r

A Python loop that writes rows of an array and reads those before them makes a version of the array
for each write; its gradient makes three, of which two are whole arrays: the cotangent with a row
cleared, zeros with a row in them, and their sum. Sound when

1. each window that is read, written or added to is at a known place, in range;
2. nothing needs a version as a whole: all that reads it reads windows, or makes another version of
   which that holds, in the same region (`jaxpr_opt.analysis.windows.taken_apart`);
3. what makes a version is elementwise, or puts a window into an array: a window of it is made of
   windows of its operands;
4. what is read is in the window that is written, or apart from it; of what is in part in it, the
   rest is read of the array as it was;
5. a sum with zeros is the other operand, up to the sign of zero.

Cost: windows instead of arrays. Windows that overlap are divided where they lie along one axis;
others are computed as one, which may grow to most of the array: then it stays.
Source: scalar replacement of aggregates, as in LLVM; Carr and Kennedy, "Scalar Replacement in the
Presence of Conditional Control Flow", 1994.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.windows.taken_apart import SLICING, taken_apart
from jaxpr_opt.analysis.windows.window_primitives import WRITES
from jaxpr_opt.builders.windows.array_windows import Windows
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class Apart(Match):
    """A read of a window, and all versions of the array that it is a window of."""

    windows: Windows


@dataclass(frozen=True)
class TakeArraysApart(Pass[Apart]):
    """Arrays of which only windows are read -> the windows."""

    name: ClassVar[str] = "take-arrays-apart"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = SLICING | {"gather"}
    needs: ClassVar[frozenset[str]] = frozenset({*WRITES, "concatenate", "pad", "stack"})

    def find(self, op: Op) -> Iterator[Apart]:
        found = taken_apart(op)  # (1) (2)
        if found is not None:
            of = f"{len(found.versions)} versions of {op.operands[0].label}"
            yield Apart(op, f"{op.name} and others need windows of {of} only", Windows(found))

    def refuse(self, match: Apart) -> str | None:
        after, before = match.windows.computed, match.windows.found.written
        nbytes = sum(part.nbytes for part in after)
        if not cost_model().is_less_moved(len(after), nbytes, len(before), sum(before)):
            return f"the windows are {bytes_text(nbytes)}, the arrays {bytes_text(sum(before))}"
        return None

    def rewrite(self, match: Apart, rw: Rewriter) -> None:
        match.windows.replace(rw)
