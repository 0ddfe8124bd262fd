"""Order reads of a carried buffer before what overwrites it: XLA need not copy it.

Before::

    c_n = scan[n] carry(c=c_0) xs(i, j) {
      x = dynamic_slice c i
      d = dynamic_update_slice c x j
      yield carry(d)
    }

After::

    c_n = scan[n] carry(c=c_0) xs(i, j) {
      x = dynamic_slice c i
      y, e = optimization_barrier x c
      d = dynamic_update_slice e y j
      yield carry(d)
    }

XLA overwrites a buffer only if all its reads are ordered before the write. It does not order reads
and writes that do not depend on each other; it fuses a read with a write, and a write with ops on
the whole buffer; and it repeats a write in the read that follows. Each time it copies the buffer,
in every step. Barriers keep them apart: one between the reads of a version and the write that
overwrites it, one between the write that made the version and its reads, one between a write whose
value depends on the buffer and ops on the whole buffer.

JAX 0.10 drops barriers before it fuses. On a CPU a division by one replaces the first kind: windows
go through it, and the write waits for a zero that is made of the quotient::

    b = bitcast_convert_type x
    q = div b (add (shift_right_logical (population_count b) 6) 1)
    y = bitcast_convert_type q
    zero = shift_right_logical (population_count q) 6
    d = dynamic_update_slice c y (add j zero)

Both are the identity, so they are always sound. They are inserted where

1. the loop carries one buffer throughout the step: by elementwise ops of the same elements (a
   stencil also reads neighbours), by ops that write, add to or combine windows, and by inner loops;
2. all other reads of the overwritten version are windows, in the loop's body, at indices that do
   not depend on the write, nor on an op that must stay behind one; or reads that the write depends
   on anyway, also in branches;
3. another op than the write uses the window, which has elements, or some op uses all of the written
   buffer: XLA handles ``c[i] = f(c[j])`` by itself, or ``c[i] = f(c[i])`` after a division, and
   what reads several windows, if the write needs it: it does not repeat that elsewhere;
4. the buffer is large enough for a copy to matter (more than one cache line; where all of it is
   read in each step, too, more than a step hides; on a GPU, where each window becomes a kernel, a
   megabyte or two), and the window small enough: behind a fence it takes memory of its own;
5. nothing differentiates the loop any more (the final phase), and XLA keeps such a fence until it
   has placed its copies; a division has a window to divide, and bits, and a number that waits.

Cost: nothing is fused across a fence. Loops over 128 bytes take 0.5 to 0.8, over 2 kB 0.03 to 0.9.
Source: https://github.com/jax-ml/jax/issues/17845, https://github.com/jax-ml/jax/issues/17640.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.carried.buffers import is_handed_on, is_read_for
from jaxpr_opt.analysis.carried.overwritten import (
    Overwrite,
    comes_first,
    overwrites,
    pays,
    reads_a_window,
    repeats,
    waits,
)
from jaxpr_opt.analysis.values.enclosing import loop_body
from jaxpr_opt.analysis.windows.window_primitives import UPDATING
from jaxpr_opt.builders.fences import barrier, division, made_on_the_way, until, why_no_fence
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.devices import fence
from jaxpr_opt.ir.graph import Op, Phase, Region, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import BARRIER, ELEMENTWISE, can_move


@dataclass(frozen=True, slots=True, eq=False)
class Overwriting(Match):
    """A write into a buffer that a loop carries, and the other ops that read what it overwrites."""

    write: Overwrite
    body: Region
    readers: tuple[Op, ...]
    within: tuple[Op, ...]
    """Those in branches, or in the steps of inner loops."""
    unordered: tuple[Op, ...]
    """Those that XLA does not order before the write."""
    whole_is_read: bool

    @property
    def array(self) -> Value:
        return self.write.array

    @property
    def fenced(self) -> tuple[Op, ...]:
        """Reads of windows that have to be kept apart from the write."""
        return tuple(each for each in self.readers if reads_a_window(each) and each.result.nbytes)


@dataclass(frozen=True)
class ReadBeforeOverwriting(Pass[Overwriting]):
    """Read and overwrite -> read, barrier, overwrite."""

    name: ClassVar[str] = "read-before-overwriting"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"  # (5)
    primitives: ClassVar[frozenset[str]] = UPDATING | {"scan", "while"}
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while"})

    def find(self, op: Op) -> Iterator[Overwriting]:
        if (body := loop_body(op)) is not None:
            for write in overwrites(op):
                yield from self._reads(write, body)

    def _reads(self, write: Overwrite, body: Region) -> Iterator[Overwriting]:
        op, array = write.op, write.array
        readers = tuple(each for each in array.users if each is not op and each.region is body)
        within = tuple(each for each in array.users if each is not op and each.region is not body)
        left = [each for each in readers if not waits(each)]
        repeated = [each for each in left if repeats(write, each)]
        unordered = tuple(each for each in left if each in repeated or not is_read_for(op, each))
        whole = any(each.name in ELEMENTWISE for each in write.result.users) and bool(left)
        model, size = cost_model(), array.nbytes
        is_small = model.is_no_line(size) or (whole and model.is_hidden(size))
        if is_small or not pays(write, readers, whole):  # (4)
            return
        if unordered or whole:  # (3)
            says = f"{array.label} is read before it is overwritten: XLA need not copy it"
            # Where all of it is read, too, a copy is little besides; after a division it is ours.
            copied = not whole and not repeated and all(map(reads_a_window, readers))
            args = op, says, write, body, readers, within, unordered, whole
            yield Overwriting(*args, about=write.result, waste="copy" if copied else None)

    def refuse(self, match: Overwriting) -> str | None:
        body, name = match.body, match.array.label
        if not is_handed_on(match.array, match.write.result, body):  # (1)
            return f"{name} is not one buffer throughout the step"
        for reader in match.readers:  # (2)
            if reader in match.unordered and not reads_a_window(reader):  # (2)
                return f"{reader.name} reads all of {name}"
        for reader in match.within:
            if not comes_first(reader, match.op):  # (2)
                return f"{name} is read inside a {reader.parent.name if reader.parent else ''}"
        if not match.whole_is_read and not any(op.results[0].nbytes for op in match.unordered):
            return f"no window of {name} is read"  # (3)
        if (reason := why_no_fence(match.array)) is not None:  # (5)
            return reason
        if fence() == "division" and all(map(waits, match.fenced)):  # (5)
            return f"this version of XLA drops barriers, and no window of {name} is read"
        if fence() == "division" and match.write.waiting_place is None:  # (5)
            return f"nothing that {match.op.name} begins with can wait for the reads"
        first, late, _ = _schedule(match)
        if match.op in first:  # (2)
            return f"the index at which {name} is read depends on the write"
        if not all(map(can_move, late)):  # (2)
            return f"the ops that compute where {name} is read cannot move"
        return None

    def rewrite(self, match: Overwriting, rw: Rewriter) -> None:
        body, op = match.body, match.op
        first, late, other = _schedule(match)
        for each in late:
            rw.move(each, other)
        reads = [each.result for each in match.fenced]
        if fence() == "division":
            reads += [value for value in made_on_the_way(reads, first) if value not in reads]
            at = match.write.waiting_place
            assert at is not None
            rw.set_operand(
                op, at, until(rw, op.operands[at], division(rw, reads, other, first), op)
            )
            return
        if match.whole_is_read:
            assert op.next is not None
            barrier(rw, [match.write.result], op.next)
        if match.unordered:
            array = match.array
            if array.op is not None and array.op.name != BARRIER:
                earliest = min(match.readers, key=body.order)
                array = barrier(rw, [array], earliest)[0]
            barrier(rw, [*reads, array], other, first)


def _schedule(match: Overwriting) -> tuple[dict[Op, None], list[Op], Op]:
    """The ops of the body that must run before the reads, and these, in program order; those of
    them that come after the first op that is none of them; and that one.
    """
    roots = [match.array, *(each.result for each in match.readers if reads_a_window(each))]
    found = set(backward_slice(roots, lambda value: value.region is not match.body))
    ops = list(match.body.ops)
    end = next(place for place, op in enumerate(ops) if op not in found)
    late = [op for op in ops[end:] if op in found]
    return dict.fromkeys((*ops[:end], *late)), late, ops[end]
