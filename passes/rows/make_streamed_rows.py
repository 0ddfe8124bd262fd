"""Make the rows of a stream in the steps that read them.

Before::

    d = broadcast_in_dim[shape=(100, 64, 16)] x
    e = broadcast_in_dim[shape=(100, 64, 16)] b
    u = mul d e
    h = scan[100] carry(h=h0) xs(u=u) {
      h1 = add (mul 0.9 h) u
      yield carry(h1)
    }

After::

    h = scan[100] carry(h=h0) xs(x=x, b=b) {
      d = broadcast_in_dim[shape=(1, 64, 16)] x
      e = broadcast_in_dim[shape=(1, 64, 16)] b
      u = reshape (mul d e)
      h1 = add (mul 0.9 h) u
      yield carry(h1)
    }

What all steps need is often computed before the loop: the outer products of a state space model, of
linear attention or of an associative memory; noise times its size; masks; one-hot vectors; windows
that are gathered. It is larger than what it is made of. Sound when

1. only loops read the array, all of them row by row, in the region where it is made;
2. each row depends on one row of each operand, or on operands that are the same for all rows:
   arithmetic, functions, movement, numbers of rows and columns, gathers at places of one row;
3. none of the ops jumps where what it reads is rounded otherwise: XLA may do so in the loop;
4. if several loops read it, as the gradient does, no op rounds otherwise in another loop: one may
   compare a row with what another has found in it.

Cost: at each op, its row is made if that takes less time than writing the array and reading its
rows. Arithmetic is fused with what reads the row (0.4 to 0.6 of the time, rows of 4 to 64 kB, jax
0.10 and 0.12). A function is not: in a step one core computes it, and it takes up to three times as
long, so that it stays before the loop unless the array exceeds the cache. It fires if what is
streamed instead is at most half of the array, beside what is in memory anyway, and moving a row
takes longer than starting an op for each further stream. If JAX then differentiates, the gradient
of what is the same for all rows is added up step by step. So a table of floats is looked up in the
loop only when nothing differentiates any more: the gradient would add to the table in each step.
Before JAX 0.11 nothing is made before JAX differentiates: on a CPU the gradient of linear attention
took 1.8 times the time.
Source: selective scans (Gu, Dao, "Mamba", arXiv:2312.00752) as written for `lax.scan`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.rows.streamed_rows import (
    StreamedRows,
    is_to_be_differentiated,
    streamed_rows,
)
from jaxpr_opt.builders.rows.made_rows import make_rows
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_quick_if_small
from jaxpr_opt.ir.graph import Op, Scan, Value, is_sized
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class MadeRows(Match):
    """A stream that is made before the loop."""

    op: Scan
    found: StreamedRows


@dataclass(frozen=True)
class MakeStreamedRows(Pass[MadeRows]):
    """Ops that make a stream -> ops in the loop that make a row."""

    name: ClassVar[str] = "make-streamed-rows"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[MadeRows]:
        for array in filter(_is_long, dict.fromkeys(stream.operand for stream in op.streams)):
            found = streamed_rows(array)  # (1, 2, 3, 4)
            if found is not None:
                size = bytes_text(array.nbytes)
                says = f"{array.label}: a step makes its row, {size} are not stored"
                yield MadeRows(op, says, found, about=array)

    def refuse(self, match: MadeRows) -> str | None:
        array, found = match.found.row.value, match.found
        if cost_model().is_most(found.added, array.nbytes):
            return f"what it is made of takes as much memory as {array.label}"
        more = max(found.more(scan) for scan in found.loops)
        if not _is_long(array, more):
            return "reading what it is made of takes as long as reading its rows"
        if is_quick_if_small() and is_to_be_differentiated(match.op):
            return "before JAX 0.11 each step of its gradient takes longer"
        return None

    def rewrite(self, match: MadeRows, rw: Rewriter) -> None:
        make_rows(match.found, rw)


def _is_long(array: Value, streams: int = 1) -> bool:
    """Whether moving a row of an array that is made takes longer than starting so many ops."""
    if array.op is None or not is_sized(array.shape):
        return False
    row = array.nbytes / max(array.shape[0], 1)
    return cost_model().moved(row) > cost_model().started(max(streams, 1))
