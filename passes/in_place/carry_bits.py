"""Write, carry and stack arrays of bfloat16 as integers of their bits, which XLA does not convert.

Before::

    c_n, ys = scan[n] carry(c=c_0) xs(i=is, x=xs) {
      d = dynamic_update_slice c x i
      yield carry(d) ys(mul x x)
    }

After::

    b_n, bs = scan[n] carry(b=(bitcast_convert_type c_0)) xs(i=is, x=xs) {
      d = dynamic_update_slice b (bitcast_convert_type x) i
      yield carry(d) ys(bitcast_convert_type (mul x x))
    }
    c_n = bitcast_convert_type b_n
    ys = bitcast_convert_type bs

Before JAX 0.11, XLA:CPU computes in float32 what is of bfloat16, and writes, too: each step
converts all of an array, writes a window, and converts all of it back. What is written is the same,
bit by bit. Sound when

1. what writes replaces windows, or adds to windows of which no two are the same: a sum of several
   numbers is made in float32, and rounded once;
2. it has no function of its own, which would be of the numbers;
3. nothing differentiates the program any more (the final phase): integers have no derivative.

What hands on an array to which bits are written, as a loop or a branch does, hands on the bits. A
loop reads the bits of rows that it streams, of which XLA would make an array of float32, too.
Arithmetic and reads of windows make numbers of what they read.

Cost: an array that the program returns is made of the bits, beside them. It fires in loops, on
arrays of which converting all takes longer than a step does anyway, for an XLA that does so; not
where a step has just computed all of an array. Stacks and carries of 1000 rows of 32 numbers, which
a step writes one by one: 0.005 of the time; of 200 rows of 1000 0.01 to 0.05, of 64 rows of 8 0.3
to 0.4, in 0.5 to 1.0 of the memory (CPU, jax 0.10).
JAX 0.12 takes as long for either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.sparse.scatter_chains import may_coincide
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.windows.window_primitives import WRITES
from jaxpr_opt.bridge.parameters import combiner_of
from jaxpr_opt.builders.in_place.bits import (
    bits_behind,
    carry_bits,
    choose_bits,
    stack_bits,
    stream_bits,
    write_bits,
)
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import converts_as_written
from jaxpr_opt.ir.graph import Carry, Cond, Op, Outcome, Phase, Scan, Stack, Stream, Value, While
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import ELEMENTWISE


@dataclass(frozen=True, slots=True, eq=False)
class Written(Match):
    """A write to an array of bfloat16, or what hands such an array on."""

    of: Carry | Stream | Stack | Outcome | None = None


@dataclass(frozen=True)
class CarryBits(Pass[Written]):
    """An array of bfloat16 that steps write to -> the bits of its numbers."""

    name: ClassVar[str] = "carry-bits"
    phase: ClassVar[Phase] = "final"  # (3)
    primitives: ClassVar[frozenset[str]] = frozenset({
        "cond", "dynamic_update_slice", "scan", "scatter", "scatter-add", "while",
    })  # fmt: skip
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while"})

    def find(self, op: Op) -> Iterator[Written]:
        if op.name in WRITES:  # (1)
            if loop_of(op) and _is_converted(op.result) and not _is_computed(op.operands[0]):
                says = f"bits are written to {op.operands[0].label}: XLA need not convert it"
                yield Written(op, says, about=op.result)
            return
        for array, of in _rows(op):
            if _is_converted(array) and bits_behind(array) is None:
                says = f"rows of {array.label} are bits: XLA need not convert all of it"
                yield Written(op, says, of, about=array)
        for array, way in _handed_on(op):
            if converts_as_written(array) and bits_behind(array) is not None:
                yield Written(op, f"the bits of {array.type} are handed on", way)

    def refuse(self, match: Written) -> str | None:
        op = match.op
        if op.name == "scatter" and combiner_of(op) is not None:  # (2)
            return "a function combines the numbers that are written"
        if op.name == "scatter-add" and may_coincide(op):  # (1)
            return "windows that may be the same are added up in float32"
        return None

    def rewrite(self, match: Written, rw: Rewriter) -> None:
        match match.op, match.of:
            case Scan() | While() as loop, Carry() as carry:
                carry_bits(loop, carry, rw)
            case Scan() as scan, Stack() as stack:
                stack_bits(scan, stack, rw)
            case Scan() as scan, Stream() as stream:
                stream_bits(scan, stream, rw)
            case Cond() as cond, Outcome() as outcome:
                choose_bits(cond, outcome, rw)
            case op, _:
                write_bits(op, rw)


def _is_converted(array: Value) -> bool:
    """Whether XLA converts all of an array where a part is written, which takes its time."""
    return converts_as_written(array) and not cost_model().is_hidden_converted(array.nbytes)


def _is_computed(array: Value) -> bool:
    """Whether a step computes all of an array before it writes to it: it makes numbers of it in any
    case.
    """
    while (op := array.op) is not None and op.name in WRITES:
        array = op.operands[0]
    return op is not None and op.name in _COMPUTING and bits_behind(array) is None


_COMPUTING = ELEMENTWISE | {"convert_element_type"}


def _rows(op: Op) -> Iterator[tuple[Value, Stream | Stack]]:
    """The arrays of which a loop reads or stacks rows."""
    if isinstance(op, Scan) and op.length > 1:
        yield from ((stack.result, stack) for stack in op.stacks if stack.result.uses)
        yield from ((stream.operand, stream) for stream in op.streams)


def _handed_on(op: Op) -> Iterator[tuple[Value, Carry | Stream | Outcome]]:
    """What a loop or a branch hands on, and as what."""
    if isinstance(op, Scan | While):
        yield from ((carry.next, carry) for carry in op.carries)
    if isinstance(op, Scan):
        yield from ((stream.operand, stream) for stream in op.streams)
    if isinstance(op, Cond):
        yield from ((v, outcome) for outcome in op.outcomes for v in outcome.values)
