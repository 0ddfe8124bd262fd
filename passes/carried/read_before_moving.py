"""Read windows of a buffer before it is moved, not of all of it moved.

Before::

    c_n = scan[n] carry(c=c_0) xs(i=is, x=xs) {
      r = reshape c
      v = dynamic_slice r i
      d = dynamic_update_slice c (add v x) j 0
      yield carry(d) ys(v)
    }

After::

    c_n = scan[n] carry(c=c_0) xs(i=is, x=xs) {
      v = reshape (dynamic_slice c (div i 8) (rem i 8))
      d = dynamic_update_slice c (add v x) j 0
      yield carry(d) ys(v)
    }

A table that a step turns round, pads, rolls, stacks beside another or reads as one row, and reads
an element of. XLA reads no more than that element; but it does not see that the read could come
before the write, and copies the buffer in each step. The gradient adds a moved array of zeros to
that of the buffer. Sound when

1. a window of what is moved is a window of each operand, or of a few of which each has a part: of
   a reshape, one element, or a run of them along one axis; of a pad, without numbers in between;
2. places out of range are clamped, or filled with a number that is known. Those that are promised
   to be in range are, or nothing differentiates the read any more: JAX's derivatives of a read out
   of range are of the nearest element forward, and of none backwards. There are fewer elements than
   32 bits count;
3. the axes of a batch, of which each row is read at a place of its own, stay axes of each operand.

Cost: the windows, of each operand one, and numbers that say which of them it is. Only in a loop
that updates in place what is moved; if all else that reads what is moved reads windows, too, and
these are a small part of it.
Source: flat indices into grids; neighbours by `jnp.roll` and `jnp.pad`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from jaxpr_opt.analysis.carried.moved_reads import (
    READING,
    MovedRead,
    moved_read,
    updated_buffer,
)
from jaxpr_opt.builders.carried.moved_reads import windows_of_operands
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class ReadOfMoved(Match):
    """A read of windows of an array whose elements an op moves."""

    found: MovedRead
    buffer: Value


@dataclass(frozen=True)
class ReadBeforeMoving(Pass[ReadOfMoved]):
    """A window of what is moved -> a window of what it is moved from."""

    name: ClassVar[str] = "read-before-moving"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = READING
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while"})

    def find(self, op: Op) -> Iterator[ReadOfMoved]:
        found = moved_read(op)  # (1, 2, 3)
        if found is None or not op.result.uses:
            return
        buffer = updated_buffer(found.move)
        if buffer is not None:
            says = f"a window of {buffer.label} is read, not of what {found.move.name} makes of it"
            yield ReadOfMoved(op, says, found, buffer, about=buffer)

    def refuse(self, match: ReadOfMoved) -> str | None:
        array = match.found.array
        whole = [op.name for op in array.users if moved_read(op) is None]
        if whole:
            return f"{whole[0]} reads all that {match.found.move.name} makes"
        if not cost_model().is_sparse(match.op.result.nbytes, match.buffer.nbytes):
            return "the window is most of the array"
        return None

    def rewrite(self, match: ReadOfMoved, rw: Rewriter) -> None:
        op = match.op
        code, operands = (
            partial(windows_of_operands, match.found),
            (*match.found.parts, *op.operands[1:]),
        )
        rw.replace(op.result, rw.typed(code, op.result.aval, *operands, before=op))
        rw.erase(op)
