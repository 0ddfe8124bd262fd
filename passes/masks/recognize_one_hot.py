"""Read and write one row at an index, where a mask with one true element selects it.

Before::

    e = eq iota i
    b1 = select_n e b y                     # y written at i
    s = select_n e 0.0 c
    r = reduce_sum s                        # c read at i

After::

    u = dynamic_slice y i
    b1 = dynamic_update_slice b u i
    v = dynamic_slice c i
    r = reshape v

``jnp.where(jnp.arange(n) == i, y, ys)`` writes one element and touches all; so does its transpose.
So do ``seen | (jnp.arange(n) == i)`` and ``counts + jax.nn.one_hot(i, n)``: their op is computed
for one row. Sound when

1. the mask compares the positions along one axis with a number that is constant along that axis:
   one for all, or one a row;
2. a number out of range chooses nothing: its write is dropped, its read is of the other elements;
3. a reduction is of one element and of its neutral element, as x + 0 is x, up to the sign of zero;
4. an op leaves the other elements as they are, as the number that they are combined with is its
   neutral element: 0 times a number is 0 of integers, and of numbers that are always finite.

Cost: an element instead of the array, unless ops read all of it anyway. Inside loops only: outside,
an array is made once in any case. Where each row of a batch has a number, the array must be larger
than what so many writes move.
Source: https://github.com/jax-ml/jax/issues/13522
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from jax import lax

from jaxpr_opt.analysis.masks.one_hot import (
    KEEPING,
    REDUCTIONS,
    Chosen,
    changed,
    reduced,
    selected,
)
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.selected_cases import spread
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.bridge.parameters import axes_of, mode_of
from jaxpr_opt.builders.masks.one_hot_rows import OneHotRows, read, written
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.nesting import is_in_a_loop
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import ELEMENTWISE, REDUCING

NARROWED = frozenset({"add", "add_any", "convert_element_type", "copy"})
"""Elementwise ops that are not computed where an operand is zero, or not at all."""

CLIP = lax.GatherScatterMode.CLIP  # what is out of range is written to the nearest place


@dataclass(frozen=True, slots=True, eq=False)
class MaskedWrite(Match):
    """A select by a one-hot mask, or an op that changes an array at one place."""

    rows: OneHotRows
    kept: Value
    here: Any
    """Another array, or a number."""


@dataclass(frozen=True, slots=True, eq=False)
class MaskedRead(Match):
    """A reduction of one element along the axis, and of neutral elements."""

    rows: OneHotRows
    row: Chosen


@dataclass(frozen=True, slots=True, eq=False)
class WrittenRead(Match):
    """A sum of one element that has been written among zeros."""

    write: Access


@dataclass(frozen=True)
class RecognizeOneHot(Pass[MaskedWrite | MaskedRead | WrittenRead]):
    """A select by ``arange(n) == i`` is a write at `i`; a sum of one is a read."""

    name: ClassVar[str] = "recognize-one-hot"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"select_n", *KEEPING, *REDUCTIONS})
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while"})

    def find(self, op: Op) -> Iterator[MaskedWrite | MaskedRead | WrittenRead]:
        if not op.result.uses or not is_in_a_loop(op) or is_sharded(op.operands[-1]):
            return
        array = op.operands[0]
        if op.name in REDUCTIONS:
            says = "a sum of one row and zeros becomes that row"
            if (row := reduced(op)) is not None:
                rows = OneHotRows(row.mask, array.shape)
                yield MaskedRead(op, says, rows, row, about=array, waste="select")
            elif (write := _only_summand(op)) is not None:
                yield WrittenRead(op, says, write, about=array, waste="select")
        elif op.name == "select_n":
            if (parts := selected(op)) is not None:
                mask, kept, new = parts
                says = "a select by a one-hot mask becomes a write of one row"
                rows = OneHotRows(mask, op.result.shape)
                yield MaskedWrite(op, says, rows, kept, new, about=op.result, waste="select")
        elif (found := changed(op)) is not None:
            kept, row = found
            says = f"{op.name} of one row of an array becomes a write of that row"
            rows = OneHotRows(row.mask, op.result.shape)
            yield MaskedWrite(op, says, rows, kept, row.here, about=op.result, waste="select")

    def refuse(self, match: MaskedWrite | MaskedRead | WrittenRead) -> str | None:
        op = match.op
        if isinstance(match, MaskedWrite | MaskedRead) and _are_short(match.rows, op):
            return "rows at places of their own take longer than selecting all elements"
        if not isinstance(match, MaskedWrite):
            return None
        if uniform(match.kept) is not None and any(map(_takes_the_row, op.result.users)):
            return "only one row of the result is read"
        takes_all = (_takes_all(user, match) for user in op.result.users)
        if all(takes_all) if op.name == "select_n" else not _takes_the_row(op):
            return "the whole array is read, not the row alone"
        return None

    def rewrite(self, match: MaskedWrite | MaskedRead | WrittenRead, rw: Rewriter) -> None:
        op = match.op
        if isinstance(match, MaskedWrite):
            new = written(match.rows, match.kept, match.here, op, rw)
        elif isinstance(match, MaskedRead):
            new = read(match.rows, match.row, op, rw)
        else:
            new = _alone(match.write, op, rw)
        rw.replace(op.result, new)
        rw.erase(op)


def _are_short(rows: OneHotRows, op: Op) -> bool:  # each with a number of its own
    return bool(rows.mask.rows) and not cost_model().is_sparse_apart(*rows.sizes(op))


def _takes_all(op: Op, match: MaskedWrite) -> bool:
    """Whether an op computes with every place along the axis, or reduces them: XLA makes them on
    the way. Or all is stacked. Sums with zeros, and choices that are one for all, may be narrowed.
    """
    if op.name == "select_n":
        (root, axes), axis = spread(op.operands[0]), match.rows.mask.axis
        return root.region is not None and axis in axes and root.shape[axes.index(axis)] > 1
    number = uniform(match.kept)
    if op.name == "dot_general":
        return number is not None
    is_whole = op.name not in NARROWED or number not in (None, 0)
    return is_whole if op.name in ELEMENTWISE | REDUCING else _is_stacked(match.op.result, op)


def _is_stacked(array: Value, end: Op) -> bool:  # and not carried on
    loop = end.parent if end.is_terminator else None
    return isinstance(loop, Scan) and all(array is not carry.next for carry in loop.carries)


def _takes_the_row(op: Op) -> bool:
    """Whether an op comes to the row, or changes it in an array that is not read as a whole."""
    if changed(op) is None:
        return op.name in REDUCTIONS and reduced(op) is not None
    ends = [user for user in op.result.users if user.is_terminator]
    parts = (user for user in op.result.users if user.regions or access(user) is not None)
    return any(parts) or not all(_is_stacked(op.result, end) for end in ends)


def _only_summand(op: Op) -> Access | None:
    """The row that zeros are written around, if the sum is along the axis it is one row of (3)."""
    made_by = op.operands[0].op
    write = access(made_by) if made_by is not None and op.name == "reduce_sum" else None
    if write is None or not (mode_of(write.op) in {None, CLIP} or write.is_located):  # (3)
        return None
    touched = [axis for axis, n in enumerate(write.array.shape) if write.sizes[axis] != n]
    one = all(write.sizes[axis] == 1 for axis in touched)
    alone = tuple(touched) == axes_of(op) and len(touched) == 1
    return write if one and alone and uniform(write.array) == 0 else None  # (3)


def _alone(write: Access, op: Op, rw: Rewriter) -> Value:
    """The row that was written."""
    shape = op.result.shape
    fun = lambda row: lax.reshape(write.to_window(row), shape)  # noqa: E731
    return rw.typed(fun, op.result.aval, write.value, before=op)
