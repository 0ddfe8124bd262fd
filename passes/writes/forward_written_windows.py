"""Use the value that was written to a window instead of reading it back.

Before::

    d = scatter[mode=fill_or_drop] c i u
    r = gather[mode=fill_or_drop, fill_value=nan] d i

After::

    d = scatter[mode=fill_or_drop] c i u
    o = and (ge i 0) (le i 7)           # c has 8 elements
    r = select_n o nan u

Where only reads keep the written array from being dropped, or selected where it is written, those
of other windows are made of the array as it was::

    d = dynamic_update_slice c u i
    r = dynamic_slice d j

becomes::

    o = dynamic_slice c j
    r = select_n (eq i j) o u

A row that is known to be another one is read as it was, too, if the step writes to the array again,
elsewhere: ``c[i, 0] = c[i - 1, 0]; c[i, 1:] = f(c[i - 1])`` reads row ``i - 1`` before both writes.

What elementwise ops make of what was written is made of the window alone, as the mask of a gradient
that is clipped: ``dynamic_slice (max d 0.0) i`` is ``max u 0.0``. Sound when

1. the read is of the window that is written, clamped alike where it is out of range: one window, or
   one in each row of a batch, so that nothing else is written to it
   (`jaxpr_opt.analysis.windows.access`);
2. a dropped window reads as the gather's fill value, which is a number; the index dtype can hold
   every position, because JAX 0.10 drops all writes to others;
3. an addition is to known zeros; or the old value is read and added;
4. two windows coincide, in range, or are apart (`jaxpr_opt.analysis.windows.coinciding`): the
   program compares where they are; what is out of range is read as before;
5. elementwise ops make the array that is read, of arrays in which that window was written, and of
   numbers that are the same all along the axes of the places; nothing is filled;
6. a window that is always in range and apart from the written one, also in range, is read of the
   array as it was, which has the same type.

Cost: one read less, or none more; XLA copies a buffer that is read between two writes (tables of
which a step writes two parts of a row: 0.01 to 0.05 of the time): else it is a clean-up, no reason
by itself to touch a program. A comparison takes less than an array, unless the windows are most of
it: those of all writes that a read must go around.
Source: store-to-load forwarding. The derivative of `jax.lax.scatter_min` counts ties by adding to
zeros, once for the updates and once for what stays, and reads the counts back: two arrays of zeros
in each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.carried.earlier_reads import is_before
from jaxpr_opt.analysis.values.constants import is_weak, strong, uniform
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.analysis.windows.window_primitives import is_same_window
from jaxpr_opt.analysis.writes.written_windows import is_around, is_overwritten, made_of_written
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import fill_value_of, fills
from jaxpr_opt.builders.windows.narrow_reads import read_operands
from jaxpr_opt.builders.writes.coinciding import kept, read_around
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import ELEMENTWISE


@dataclass(frozen=True, slots=True, eq=False)
class ReadBack(Match):
    """A read of the window that `write` has just written, or added to."""

    write: Access


@dataclass(frozen=True, slots=True, eq=False)
class ReadAround(Match):
    """A read of a window that may be the one that `write` has written, or added to."""

    read: Access
    write: Access


@dataclass(frozen=True, slots=True, eq=False)
class ReadBefore(Match):
    """A read of a window of which `write` has written nothing."""

    write: Access


@dataclass(frozen=True, slots=True, eq=False)
class ReadMade(Match):
    """A read of a window of what `made_by` makes of arrays in which it was written."""

    read: Access
    made_by: Op


Found = ReadBack | ReadBefore | ReadAround | ReadMade


@dataclass(frozen=True)
class ForwardWrittenWindows(Pass[Found]):
    """Write and read back -> write."""

    name: ClassVar[str] = "forward-written-windows"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"dynamic_slice", "gather", "slice"})

    def find(self, op: Op) -> Iterator[Found]:
        made_by = op.operands[0].op
        is_static = op.name == "slice"
        if made_by is not None and made_by.name in ELEMENTWISE and not is_static:
            made = made_of_written(op, made_by)  # (5)
            if made is not None:
                says = f"{op.name} reads what {made_by.name} makes of what was written"
                yield ReadMade(op, says, made, made_by, is_cleanup=True)
            return
        write = access(made_by) if made_by is not None and op.result.uses else None
        if write is None or write.kind == "read":  # (1)
            return
        read = access(op)
        if is_same_window(op, write.op):  # (1)
            says = f"{op.name} reads what {write.op.name} has written"
            yield ReadBack(op, says, write, is_cleanup=not is_overwritten(write))
        elif read is not None and is_before(read, write):  # (6)
            says = f"{op.name} reads nothing of what {write.op.name} has written"
            yield ReadBefore(op, says, write)
        elif read is not None and not is_static and is_around(read, write):
            says = f"{op.name} reads what was there before, or what {write.op.name} has written"
            yield ReadAround(op, says, read, write, is_cleanup=True)

    def refuse(self, match: Found) -> str | None:
        op = match.op
        if isinstance(match, ReadMade):
            most = cost_model().is_most(match.read.nbytes, match.read.array.nbytes)
            return "the window is most of the array" if most else None
        if isinstance(match, ReadBefore):
            return None
        if isinstance(match, ReadAround):
            array = match.write.array
            if not isinstance(array.dtype, np.dtype):
                return f"windows of {array.dtype} are not selected"  # (4)
            return None
        if not _may_be_filled(op, match.write):
            return None
        if not isinstance(op.result.dtype, np.dtype):
            return f"the fill value of {op.name} is not a number"  # (2)
        if not dtypes.holds(op.operands[1].dtype, max(match.write.array.shape)):
            return "the dtype of the index is too small for all rows"  # (2)
        return None

    def rewrite(self, match: Found, rw: Rewriter) -> None:
        if isinstance(match, ReadBefore):
            rw.set_operand(match.op, 0, match.write.array)
            return
        if not isinstance(match, ReadBack):
            op = match.op
            fun, operands = (
                read_around(match.read, match.write)
                if isinstance(match, ReadAround)
                else read_operands(match.made_by, match.read)
            )
            rw.replace(op.result, rw.typed(fun, op.result.aval, *operands, before=op))
            rw.erase(op)
            return
        read, write = match.op, match.write
        to_zeros = uniform(write.array) == 0

        def forwarded(value: jax.Array, *rest: jax.Array) -> jax.Array:
            array, indices = rest[0], rest[1:]
            value = strong(value) if is_weak(write.value) else value
            if write.kind == "add" and not to_zeros:  # (3)
                value = lax.add(write.read(array, *indices), value)
            if not _may_be_filled(read, write):  # (2)
                return value
            filled = lax.full_like(value, fill_value_of(read))
            return lax.select_n(kept(write, *indices), filled, value)

        operands = (write.value, write.array, *write.indices)
        rw.replace(read.result, rw.typed(forwarded, read.result.aval, *operands, before=read))
        rw.erase(read)


def _may_be_filled(read: Op, write: Access) -> bool:  # (2)
    """Whether what is read may be out of range, and a number stands for it then."""
    return fills(read) and not write.is_located
