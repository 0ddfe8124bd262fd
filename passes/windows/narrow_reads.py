"""Read windows of an array's operands instead of making the array and reading a window of it.

Before::

    m = broadcast_in_dim[dims=(0,)] p
    s = select_n m z c
    r = dynamic_slice s i

After::

    x = dynamic_slice z i
    y = dynamic_slice c i
    r = select_n p x y

What a batched ``cond`` passes to its branches, and what the transpose of a cond reads of a
cotangent, is selected whole so that one element can be read. Often only the last row is wanted of a
table that a loop has filled row by row, and `vmap` transposes the table first. Sound when

1. the array is a select, and all its readers read windows;
2. the predicate at the window is known (`jaxpr_opt.analysis.masks.masks_at_windows`); the cases
   are read as the array is, so that rows out of range are what the gather says;
3. or the array is a broadcast, along all axes on which the window is only a part, and what is out
   of range is clamped, or filled with the broadcast value: then the window's position does not
   matter;
4. or the window is a slice, and the array a concatenation, maybe transposed, one operand of which
   contains the slice (`jaxpr_opt.analysis.windows.concat_operands`); all readers of the array are
   such slices, and a loop stacks an operand: it is then not needed for it, or not copied;
5. or a loop's step computes the array by basic arithmetic, element by element, from arrays of its
   size, and all its readers read such windows: an element out of range, if it is filled, is zero,
   and so is a product, a sum or a difference of zeros;
6. or it is a window that a loop reads of such a concatenation, in one operand at every step: then
   the concatenation is never made.

Cost: an element of each case instead of the array, unless a loop would keep more before it; of a
concatenation, nothing. XLA reads sums and products (5) as narrowly; but then their operands need
not be stored whole.
Source: https://github.com/jax-ml/jax/issues/8192; XLA does so for slices, but not for gathers, nor
for slices of a transposed concatenation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxpr_opt.analysis.masks.masks_at_windows import AtWindow, more_kept, spread_at
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.windows.access import Access, access, reads_window
from jaxpr_opt.analysis.windows.concat_operands import OperandSlice, OperandWindow, part, stacked_by
from jaxpr_opt.bridge.parameters import fill_value_of, fills
from jaxpr_opt.builders.windows.narrow_reads import read_cases, read_operands, spread_out
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.nesting import is_in_a_loop
from jaxpr_opt.ir.rewriter import Rewriter

RING = frozenset({"add", "add_any", "mul", "neg", "stop_gradient", "sub"})
"""Elementwise ops that make zero of zeros, and cost no more than reading their operands."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadOfSelect(Match):
    """A window read of what `select` makes."""

    select: Op
    access: Access


@dataclass(frozen=True, slots=True, eq=False)
class ReadOfArithmetic(Match):
    """A window read of what `made_by` computes element by element."""

    made_by: Op
    access: Access


@dataclass(frozen=True, slots=True, eq=False)
class ReadOfBroadcast(Match):
    """A window read of what is the same wherever the window is."""

    root: Value
    at_window: AtWindow


@dataclass(frozen=True, slots=True, eq=False)
class ReadOfPart(Match):
    """A slice or a window of what is put together of several parts."""

    part: OperandSlice | OperandWindow


Found = ReadOfSelect | ReadOfArithmetic | ReadOfBroadcast | ReadOfPart


@dataclass(frozen=True)
class NarrowReads(Pass[Found]):
    """A window of a select -> a select between windows; of a broadcast -> a smaller broadcast; of
    a concatenation -> of one part.
    """

    name: ClassVar[str] = "narrow-reads"
    whole_arrays: ClassVar[bool] = True

    primitives: ClassVar[frozenset[str]] = frozenset({"dynamic_slice", "gather", "slice"})

    def find(self, op: Op) -> Iterator[Found]:
        found = part(op) if op.result.uses else None
        if found is not None and (_is_of_a_stack(found) or isinstance(found, OperandWindow)):
            yield ReadOfPart(op, f"{op.name} of a concatenation reads the operand it is in", found)
        if op.name == "slice":
            return
        made_by = op.operands[0].op
        if made_by is None or made_by.name not in {"select_n", "broadcast_in_dim", *RING}:
            return
        read = access(op)
        if read is None or not op.result.uses:
            return
        if made_by.name == "broadcast_in_dim":
            spread = spread_at(read, read.array)
            if spread is not None:
                yield ReadOfBroadcast(op, f"{op.name} of a broadcast reads the operand", *spread)
        elif made_by.name in RING:
            if _is_of_windows(read, made_by):
                says = f"{op.name} reads windows of arrays, not of what {made_by.name} makes of all"
                yield ReadOfArithmetic(op, says, made_by, read, is_cleanup=True)
        elif len(made_by.operands) == 3 and made_by.operands[0].dtype == bool:
            yield ReadOfSelect(
                op, f"{op.name} of a select reads the cases, then selects", made_by, read
            )

    def refuse(self, match: Found) -> str | None:
        if isinstance(match, ReadOfBroadcast):
            known = _fill(match.op) in (None, uniform(match.root))
            return None if known else "rows out of range are filled"  # (3)
        if isinstance(match, ReadOfPart):
            return _is_needed_whole(match.part)
        array = match.access.array
        whole = [op.name for op in array.users if not reads_window(op, array)]
        if whole:
            return f"{whole[0]} reads the whole array"  # (1)
        if cost_model().is_most(match.access.nbytes, array.nbytes):
            return "the window is most of the array"
        more = more_kept(match.select, match.op) if isinstance(match, ReadOfSelect) else 0
        if cost_model().is_visible(more, array.nbytes):
            return "its cases and its mask take more memory, which the loop would keep"
        return None

    def rewrite(self, match: Found, rw: Rewriter) -> None:
        op = match.op
        if isinstance(match, ReadOfBroadcast):
            fun, operands = spread_out(op, match.root, match.at_window)
        elif isinstance(match, ReadOfPart):
            fun, operands = match.part.read, (match.part.array, *op.operands[1:])
        elif isinstance(match, ReadOfArithmetic):
            fun, operands = read_operands(match.made_by, match.access)
        else:
            fun, operands = read_cases(match.select, match.access)
        rw.replace(op.result, rw.typed(fun, op.result.aval, *operands, before=op))
        rw.erase(op)


def _is_needed_whole(found: OperandSlice | OperandWindow) -> str | None:
    op, *between = found.path
    if isinstance(found, OperandWindow) and op.region is between[-1].region:
        return "XLA does not build a concatenation that is read once"  # (6)
    for op in between:
        others = (u for u in op.result.users if u not in found.path and part(u) is None)
        other = next(others, None)
        if other is not None:
            return f"{other.name} reads the whole array"  # (4, 6)
    return None


def _is_of_a_stack(found: OperandSlice | OperandWindow) -> bool:
    """Whether a loop stacks a part (4): else XLA does as well."""
    return any(stacked_by(each) for each in found.path[-1].operands)


def _fill(read: Op) -> Any:
    """The number that stands for rows out of range, if they are filled."""
    if not fills(read):
        return None
    number = fill_value_of(read)
    return "unknown" if number is None else number


def _is_of_windows(read: Access, made_by: Op) -> bool:
    """Whether a step computes an array that it reads, and the window is made of the same windows of
    all operands, out of range, too.
    """
    if made_by.region is not read.op.region or not is_in_a_loop(read.op):
        return False
    if not read.is_located and _fill(read.op) not in (None, 0):  # (5)
        return False
    return all(value.shape == read.array.shape for value in made_by.operands)  # (5)
