"""Read a window around the writes of a step: of the array as it was before them.

Before::

    d = scatter c i u
    r = gather[mode=clip] d j
    e = scatter d k (f r)

After::

    d = scatter c i u
    o = gather[mode=clip] c j
    r = select_n (eq i j) o u
    e = scatter d k (f r)

A window whose place comes again in the step XLA reads by itself, and repeats in that read the write
before it. So it reads the array as it was once it has been overwritten, and copies all of it in
each step. What lies in one piece is read by the op that writes next, if that is where it writes; of
rows with places of their own each is read by itself. Sound when

1. the two windows coincide, in range, or are apart (`jaxpr_opt.analysis.windows.coinciding`): the
   program compares where they are; what is out of range is read as before;
2. the numbers can be selected: keys of random numbers cannot.

It is done where

3. the step of a loop writes to the written array again, a few times only, and the windows of all
   writes that the read must go around are less than the array; and it reads or writes that place
   once more. XLA else makes one op of all writes, and reads before it;
4. nothing differentiates the loop any more (the final phase): the gradient of a select is two.

Cost: a comparison for each write, where XLA would copy the array: two updates of an element in each
of 4 rows of 4000 numbers take 0.001 to 0.1 of the time.
Source: store-to-load forwarding; https://github.com/jax-ml/jax/issues/17640.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.analysis.writes.written_windows import is_around_in_step
from jaxpr_opt.builders.writes.coinciding import read_around
from jaxpr_opt.engine.interface import Pass
from jaxpr_opt.ir.graph import Op, Phase
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.passes.writes.forward_written_windows import ReadAround


@dataclass(frozen=True)
class ReadAroundWrites(Pass[ReadAround]):
    """Write, read, write again -> read, then write twice."""

    name: ClassVar[str] = "read-around-writes"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"  # (4)
    primitives: ClassVar[frozenset[str]] = frozenset({"dynamic_slice", "gather"})
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while"})

    def find(self, op: Op) -> Iterator[ReadAround]:
        made_by = op.operands[0].op
        write = access(made_by) if made_by is not None and op.result.uses else None
        read = access(op)
        if write is None or write.kind == "read" or read is None:
            return
        if is_around_in_step(read, write):  # (1, 3)
            says = f"{op.name} reads {write.array.label} before it is written to"
            yield ReadAround(op, says, read, write, at=write.op, about=write.array, waste="copy")

    def refuse(self, match: ReadAround) -> str | None:
        if not isinstance(match.write.array.dtype, np.dtype):  # (2)
            return f"windows of {match.write.array.dtype} are not selected"
        return None

    def rewrite(self, match: ReadAround, rw: Rewriter) -> None:
        op = match.op
        fun, operands = read_around(match.read, match.write)
        rw.replace(op.result, rw.typed(fun, op.result.aval, *operands, before=op))
        rw.erase(op)
