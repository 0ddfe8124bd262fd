"""Carry what is always zero or one as a truth value.

Before::

    scan[100] carry(x=x_0, done=0.0) {
      stop = gt done 0.5
      x1 = select stop (step x) x
      yield carry(x1, max done (convert (lt (error x1) 0.001)))
    }

After::

    scan[100] carry(x=x_0, q=false) {
      done = select q 0.0 1.0
      x1 = select q (step x) x
      yield carry(x1, or q (lt (error x1) 0.001))
    }

Programs that keep a mask as a number compare it with a half or with zero, or multiply with it:
``m * new + (1 - m) * old``. Each does so in its own way, and the loop back reads rows of the mask.
As a truth value it is one mask. Sound when

1. the carry begins as zeros and ones, and a step makes zeros and ones of such
   (`jaxpr_opt.analysis.values.flags`): then its derivative is zero;
2. a step compares the number with a constant that tells zero from one, or multiplies with it. No
   step reads or writes single elements: each time all others would be converted;
3. numbers that are streamed or stacked, not carried, are no integers. Only loops read them, row by
   row, or reductions, which convert them where they read. Streamed rows must be made of truth
   values by conversions, moves and ``1 - x``, or, without conversions, of numbers that are asked
   whether they are zero (`ask-about-factors`). The truth values, or those numbers, are then
   streamed and stacked.

The number is selected, not converted: XLA would see the truth value, and make a select of a product
with it, which loses the NaN of ``0 * NaN``.

Cost: a comparison for each step; what asks about the number goes. A row that is stored takes a
byte, not four.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.repeated_ops import WINDOW_READS
from jaxpr_opt.analysis.values.flags import (
    asked,
    is_flag,
    is_negation,
    source_of,
)
from jaxpr_opt.analysis.windows.window_primitives import INDEXED_WRITES, WRITES
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.steps.flag_rows import carry_truth, read_root, stack_root
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import users_through
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Op, Scan, Stack, Stream, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import REDUCING, VIEWING


@dataclass(frozen=True, slots=True, eq=False)
class Flag(Match):
    """A carry that is zero or one, or rows that are, which are read or stacked."""

    op: Scan
    of: Carry | Stream | Stack


@dataclass(frozen=True)
class CarryTruthValues(Pass[Flag]):
    """A carry, or rows, of zeros and ones -> truth values that are carried, read or stacked."""

    name: ClassVar[str] = "carry-truth-values"
    cleanup: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[Flag]:
        for carry in op.carries:
            if _is_asked(carry.param) and _is_flag(carry.param):  # (1, 2)
                says = f"{carry.param.label} is always zero or one, so a truth value is carried"
                yield Flag(op, says, carry, about=carry.param)
        for stream in op.streams:
            if source_of(stream.operand) and _is_asked_by_rows(stream.operand):  # (2, 3)
                says = f"the truth values behind {stream.param.label} are read, not the numbers"
                yield Flag(op, says, stream, about=stream.param)
        for stack in op.stacks:
            if not _is_asked_by_rows(stack.result):  # (2, 3)
                continue
            if _is_flag(stack.value):  # (1)
                says = f"{stack.result.label} holds zeros and ones, so truth values are stacked"
                yield Flag(op, says, stack, about=stack.result)
            elif _is_made_of_rows(stack.value):  # (3)
                says = f"{stack.result.label} is computed from the stacked numbers, not stacked"
                yield Flag(op, says, stack, about=stack.result)

    def refuse(self, match: Flag) -> str | None:
        users = match.of.param.users if isinstance(match.of, Carry) else []
        if any(user.name in WRITES | INDEXED_WRITES for user in users):  # (2)
            return "a step writes some of its elements"
        if any(map(_reads_a_part, users)):  # (2)
            return "a step reads some of its elements"
        return None

    def rewrite(self, match: Flag, rw: Rewriter) -> None:
        match match.of:
            case Carry() as carry:
                carry_truth(match.op, carry, rw)
            case Stream() as stream:
                read_root(match.op, stream, rw)
            case Stack() as stack:
                stack_root(match.op, stack, rw)


def _reads_a_part(op: Op) -> bool:
    """Whether an op reads fewer elements of an array, at places that are not known, than it has."""
    return op.name in WINDOW_READS and op.result.size < op.operands[0].size


def _is_flag(value: Value) -> bool:
    return value.dtype != bool and is_flag(value)  # (1)


def _is_made_of_rows(value: Value) -> bool:
    """Whether numbers are stacked that are made of ones that are asked, which are no larger."""
    source = source_of(value)
    return source is not None and source.root.dtype != bool and source.root.size <= value.size


@remembered
def _is_asked_by_rows(array: Value) -> bool:
    """Whether loops read an array, row by row, of which one asks what it is; else it is reduced."""
    reads = [(u.op, u.position) for u in array.uses if isinstance(u.op, Scan)]
    rows = [scan.body.params[i] for scan, i in reads if i >= scan.num_carries]
    reduced = sum(u.op.name in REDUCING for u in array.uses)
    is_read = len(rows) + reduced == len(array.uses) and dtypes.is_inexact(array.dtype)
    return is_read and any(map(_is_asked, rows))  # (2, 3)


def _is_asked(value: Value) -> bool:
    """Whether a comparison tells whether a value, or a view of it, is zero or one, or it is a
    factor (2).
    """
    users = users_through(value, _keeps_truth)
    return any(_is_product(user) or asked(user) is not None for user in users)  # (2)


def _keeps_truth(op: Op) -> bool:
    """Whether of a flag the op makes one that tells the same."""
    is_moved = op.name in VIEWING or op.name == "convert_element_type"
    return is_moved or is_negation(op)


def _is_product(op: Op) -> bool:
    return op.name == "mul" and dtypes.is_inexact(op.result.dtype)
