"""Order a write into a carried buffer before the reads that follow, so that XLA need not copy it.

Before::

    c_n = scan[n] carry(c=c_0, t=0) xs(x) {
      c1 = dynamic_update_slice c x t
      y = dynamic_slice c1 (sub t 1)
      z = dot_general y w
      yield carry(c1, (add t 1)) ys(z)
    }

After::

    c_n = scan[n] carry(c=c_0, t=0) xs(x) {
      d = dynamic_update_slice c x t
      c1 = optimization_barrier d
      y = dynamic_slice c1 (sub t 1)
      z = dot_general y w
      yield carry(c1, (add t 1)) ys(z)
    }

XLA fuses a read with the op that made the array: it writes once for the buffer, and again, as far
as needed, in the read. That second write starts from the old version, so XLA writes into a copy, in
every step. A cache of which a step multiplies the last few entries is such a buffer.

JAX 0.10 drops barriers before it fuses. On a CPU a division by one replaces it, which the window
goes through; see `read-before-overwriting`.

Both are the identity, so they are always sound. They are inserted where

1. the loop carries one buffer throughout the step, and the write is the last;
2. the step reads a window of the result and multiplies it directly: otherwise XLA fuses the read
   with its reader; and the window's index is not read from an array, which it would fuse, too;
3. the buffer is large enough for a copy to matter;
4. nothing differentiates the loop any more (the final phase), and XLA keeps such a fence until it
   has placed its copies; what is divided has bits.

Cost: ops on both sides of a fence are not fused. Before a write that overwrites the window,
`read-before-overwriting` does the same.
Source: measured, on two caches of 2048 rows of 8 of which 16 are read: 3.0 -> 0.6 ms on JAX 0.12,
and 4.3 -> 1.5 ms on 0.10.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.carried.buffers import is_handed_on
from jaxpr_opt.analysis.values.enclosing import loop_body
from jaxpr_opt.analysis.values.renaming import is_noop_cast
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.analysis.windows.window_primitives import WRITES
from jaxpr_opt.builders.fences import barrier, division, why_no_fence
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import backward_slice, users_through
from jaxpr_opt.ir.devices import fence
from jaxpr_opt.ir.graph import Op, Phase, Region, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Following(Match):
    """A write that makes the version a step leaves, and the windows that are read of that."""

    write: Access
    body: Region
    reads: tuple[Access, ...]


@dataclass(frozen=True)
class ReadAfterWriting(Pass[Following]):
    """Write and read -> write, barrier, read."""

    name: ClassVar[str] = "read-after-writing"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"  # (4)
    primitives: ClassVar[frozenset[str]] = WRITES
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while"})

    def find(self, op: Op) -> Iterator[Following]:
        body, write = loop_body(op), access(op)
        if body is None or write is None or cost_model().is_hidden(op.operands[0].nbytes):
            return  # (3)
        reads = tuple(_reads(write, body))
        if reads:
            says = f"{write.array.label} is written before it is read: XLA need not copy it"
            yield Following(op, says, write, body, reads, about=op.result, waste="copy")

    def refuse(self, match: Following) -> str | None:
        name = match.write.array.label
        if not is_handed_on(match.op.operands[0], match.op.result, match.body):  # (1)
            return f"{name} is not one buffer throughout the step"
        return why_no_fence(match.write.array)  # (4)

    def rewrite(self, match: Following, rw: Rewriter) -> None:
        if fence() == "barrier":
            after = match.op.next
            assert after is not None
            barrier(rw, [match.op.result], after)
            return
        for read in match.reads:
            after = read.op.next
            assert after is not None
            division(rw, [read.op.result], after)


def _reads(write: Access, body: Region) -> Iterator[Access]:
    """The windows of the version that is left that XLA would write again (1, 2)."""
    version = write.op.result
    if version not in body.terminator.operands:  # (1)
        return
    for user in version.users:
        read = access(user) if user.region is body else None
        if read is None or read.kind != "read" or read.array is not version:
            continue
        if _is_multiplied(user.result) and not _is_of_data(read, body):  # (2)
            yield read


def _is_multiplied(window: Value) -> bool:
    """Whether an operand of a product is the window, maybe in another shape."""
    return any(user.name == "dot_general" for user in users_through(window, _shows))


def _shows(op: Op) -> bool:
    """Whether the result is all of the operand, as XLA has it in memory."""
    return op.name in ("reshape", "squeeze") or is_noop_cast(op)


def _is_of_data(read: Access, body: Region) -> bool:
    """Whether where a window is, is made of elements that the step looks up in arrays."""
    made_of = backward_slice(read.indices, lambda value: value.region is not body)
    loop = body.owner
    rows = [stream.param for stream in loop.streams] if isinstance(loop, Scan) else []
    values = {*read.indices, *(v for op in made_of for v in op.operands)}
    looked_up = (found for op in made_of if (found := access(op)) is not None)
    return not values.isdisjoint(rows) or any(found.indices for found in looked_up)
