"""Compute a factor of an outer product once, instead of for each element of the product.

Before::

    c = concatenate a b
    d = dot_general[contract=x] c e

After::

    c = concatenate a b
    o = optimization_barrier c
    d = dot_general[contract=x] o e

The gradient of ``x @ w`` for one row `x` is an outer product, as that of a recurrent network for
one sequence: XLA multiplies element by element, and computes in that loop whatever simple ops make
the factors, once for each element of the product. That takes no longer than reading them, but where
it finds each number by a jump, or looks up its place: then it computes no numbers together. Sound,
as a fence is the identity for everyone but XLA. It pays where

1. the product sums over nothing: else XLA calls a library, and the factors are in memory;
2. the factor is made in the step of a loop, by ops that XLA repeats where they are read, and of
   which one joins parts, pads, or merges axes; the jumps take longer than starting one op more;
3. the factor lies along the last axis of the product: else a row is multiplied by one number of it,
   which is computed once. And it is no short row, over which LLVM unrolls the loop.

Cost: one op a step, which writes the factor; none if another product reads it. The gradient of an
LSTM for one sequence (200 steps of 16 to 64 numbers) takes 0.2 to 0.6 of the time of plain JAX (jax
0.10 and 0.12); a product of a row of 8 x 16 numbers, flattened, 0.2 (jax 0.12).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.bridge.parameters import numbers_of, permutation_of
from jaxpr_opt.builders.fences import barrier, can_be_divided, division
from jaxpr_opt.cost.fusion import sums_nothing
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import fence
from jaxpr_opt.ir.graph import Op, Phase, Value, is_sized
from jaxpr_opt.ir.nesting import is_in_a_loop
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedFactor(Match):
    """A product, one of its factors, and the ops that XLA would compute again for each element."""

    factor: Value
    ops: list[Op]


@dataclass(frozen=True)
class MakeFactorsOnce(Pass[RepeatedFactor]):
    """What is computed for each element of an outer product -> for each element of a factor."""

    name: ClassVar[str] = "make-factors-once"
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = frozenset({"dot_general"})

    def find(self, op: Op) -> Iterator[RepeatedFactor]:
        if not is_in_a_loop(op) or not is_sized(op.result.shape):
            return
        if not sums_nothing(op):  # (1)
            return
        for factor in dict.fromkeys(op.operands):
            if ops := _repeated(factor, op):  # (2)
                says = f"{ops[0].name} is computed once, not for each element of a product"
                yield RepeatedFactor(op, says, factor, ops, about=factor)

    def refuse(self, match: RepeatedFactor) -> str | None:
        factor, model = match.factor, cost_model()
        row = _last_numbers(match)
        if row is None:  # (3)
            return "a row of the product is multiplied by one number of it"
        if model.is_row_unrolled(row, match.ops):  # (3)
            return "a loop over its few numbers is unrolled, so they are computed once"
        seconds = model.jumped(match.ops, match.op.result.size - factor.size)
        if seconds <= model.doubtful(model.started(1) + model.moved(factor.nbytes)):
            return "computing it again takes no longer than an op more"  # (2)
        if fence() is None or not can_be_divided(factor):
            return f"nothing keeps XLA from computing {factor.label} again"
        return None

    def rewrite(self, match: RepeatedFactor, rw: Rewriter) -> None:
        made = match.factor.op
        assert made is not None and made.next is not None
        (barrier if fence() == "barrier" else division)(rw, [match.factor], made.next)


def _last_numbers(match: RepeatedFactor) -> int | None:
    """How long the last axis of the product is, as what reads it lays it out, if it is the factor's
    (3).
    """
    shape, users = match.op.result.shape, match.op.result.users
    axis = len(shape) - 1
    if len(users) == 1 and users[0].name == "transpose":
        axis = permutation_of(users[0])[-1]
    first, last = match.op.operands
    (summed, _), (batch, _) = numbers_of(match.op)
    of_first = axis < len(first.shape) - len(summed)
    is_its = axis >= len(batch) and (first if of_first else last) is match.factor
    return shape[axis] if is_its else None


def _repeated(factor: Value, product: Op) -> list[Op]:
    """The ops of a step that make a factor, and that XLA repeats, if one of them jumps (2)."""
    ops: list[Op] = []
    pending = [factor]
    for value in pending:
        op = value.op
        if op is None or op.region is not product.region or op in ops:
            continue
        if not cost_model().is_repeated(op):
            continue
        ops.append(op)
        pending += op.operands
    return ops if any(map(cost_model().jumps, ops)) else []
