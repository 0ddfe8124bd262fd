"""Keep the write of a window out of the ops that read all of the array.

Before::

    c_n, ys = scan[n] carry(c=c_0) xs(i=is, u=us) {
      c1 = dynamic_update_slice c u i
      d = mul c1 0.9
      yield carry(d)
    }

After::

    c_n, ys = scan[n] carry(c=c_0) xs(i=is, u=us) {
      c1 = dynamic_update_slice[apart] c u i
      d = mul c1 0.9
      yield carry(d)
    }

XLA fuses a write with the ops that read all of the array: they ask of every number whether it is
in the window, and compute the numbers one by one.  A memory that forgets, traces of eligibility, a
field with a source: each step writes an element, and then computes with the whole array.  Apart,
the element is written in place, and the ops read memory.  The write stays what it was, so this is
always sound.  It is done where

1. in a loop, all that reads the result are ops that XLA fuses with the write: for another reader,
   or for the next step, it is written in place as it is;
2. the loop carries the array, or the step computes it, and nothing reads it after the write, so
   that it is written in place;
3. before JAX 0.11, where the write is a function of its own: XLA has code for it there, and all
   arguments are read, so the window is smaller than the array, and starts along axes that it fills
   are no arguments;
4. nothing differentiates or batches the loop any more (the final phase).

Cost: one more op is started, before JAX 0.11 a function. It pays for arrays of some hundred
numbers, before JAX 0.11 of some thousand if a step has many ops; not at a place that is known when
the program is compiled, which XLA tells apart by itself, nor where numbers are computed one by one
in any case, nor of bfloat16 that a step computes, before JAX 0.11: XLA would convert it.
Source: measured; 4000 numbers, of which a step writes one and multiplies all: 1.6 us -> 0.4 us a
step on JAX 0.12, 1.7 us -> 0.65 us on 0.10, which takes 0.63 us without the write (CPU).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.carried.buffers import is_updated_in
from jaxpr_opt.analysis.steps.one_function import is_known
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.enclosing import is_read_after, loop_of
from jaxpr_opt.analysis.values.renaming import original
from jaxpr_opt.analysis.windows.window_primitives import UPDATE, WRITES, places
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.reuse import is_view
from jaxpr_opt.cost.windows import windows_apart
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import source_through, users_through
from jaxpr_opt.ir.devices import converts_as_written
from jaxpr_opt.ir.graph import Op, Phase, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import BARRIER, ELEMENTWISE, REDUCING, is_broadcast


@dataclass(frozen=True)
class WriteApart(Pass[Match]):
    """A write into an array that the step reads as a whole -> an op of its own."""

    name: ClassVar[str] = "write-apart"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"  # (4)
    primitives: ClassVar[frozenset[str]] = WRITES
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while"})

    def find(self, op: Op) -> Iterator[Match]:
        if loop_of(op) is None or op.alone:
            return
        readers = (each for each in users_through(op.result, _shows) if not _shows(each))
        if all(map(_computes, readers)):  # (1)
            yield Match(op, f"{op.result.type} is written in place, then read", about=op.result)

    def refuse(self, match: Match) -> str | None:
        op, array = match.op, match.op.operands[0]
        update = op.operands[UPDATE[op.name]]
        assert op.region is not None
        is_read = any(is_read_after(name, op) for name in {array, original(array)})
        if is_read or not _is_own(array, op):  # (2)
            return f"{array.label} cannot be written in place"
        if windows_apart(op) > 1 or not is_known(op) or update.size >= array.size:  # (3)
            return "XLA would not make it a function of its own"
        if converts_as_written(array) and not _is_carried(array, op):
            return "XLA would convert all of the array once more"
        if all(uniform(place) is not None for place in places(op)):
            return "the place is known when the program is compiled"
        if any(map(_is_turned, users_through(op.result, _computes))):
            return "its readers compute numbers one by one, as they read another array across"
        if not cost_model().is_worth_writing_apart(array, op.region):
            return "starting one more op takes as long as to look for the window"
        return None

    def rewrite(self, match: Match, rw: Rewriter) -> None:
        rw.set_alone(match.op)


def _shows(op: Op) -> bool:
    """Whether the result is all of the operand, as XLA has it in memory."""
    return is_view(op) and op.name != BARRIER


def _computes(op: Op) -> bool:
    """Whether an op computes with all numbers of what it reads, and XLA fuses it with others."""
    return op.name in ELEMENTWISE | REDUCING and len(op.results) == 1


def _is_turned(op: Op) -> bool:
    """Whether an op reads an array along another axis than it lies in memory."""
    makers = (value.op for value in op.operands if value.op is not None)
    return any(maker.name == "transpose" and not is_view(maker) for maker in makers)


def _is_own(array: Value, op: Op) -> bool:
    """Whether the loop carries the array, or the step computes it."""
    source = source_through(array, lambda maker: maker.name in WRITES)
    maker = source.op
    is_made = maker is not None and maker.region is op.region and not is_broadcast(maker)
    return is_made or _is_carried(array, op)


def _is_carried(array: Value, op: Op) -> bool:
    """Whether the loop carries the array."""
    loop = loop_of(op)
    assert loop is not None
    return is_updated_in(source_through(array, lambda maker: maker.name in WRITES), loop)
