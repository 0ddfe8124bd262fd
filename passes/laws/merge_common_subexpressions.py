"""Compute a value once where the program computes it twice.

Before::

    a = sin x
    y, z = scan[8] carry(c=x) xs(p=xs, q=xs) {
      b = sin x
      d = add c b
      e = mul p q
      yield carry(d) ys(e, e)
    }

After::

    a = sin x
    y, z = scan[8] carry(c=x) xs(p=xs) {
      d = add c a
      e = mul p p
      yield carry(d) ys(e)
    }

Sound when

1. both ops are the same function: primitive, parameters, equation context and types of the results,
   weak types and shardings included; it has no effects, is deterministic and is no collective;
2. they read the same values; constants are compared bit by bit with their type, so that NaN equals
   NaN, and -0.0 differs from 0.0;
3. the one that stays dominates the other. No `Remat` is between them, whose purpose is to
   recompute; nor a `Call`, which captures nothing;
4. an op that only broadcasts (a broadcast, an iota), and arithmetic on that, is merged within its
   region only: made where it is read it costs nothing, carried into a loop it takes memory. What is
   computed of it and of other values is merged as if it were one value in all regions;
5. two slots of a structured op are one if they hold the same value: streams of one operand, stacks
   of one value, results with the same value in every branch, carries with the same `init` and the
   same `next`.

Cost: linear; one table, scoped by region.
Source: value numbering over structured regions, as in MLIR's CSE.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.values.value_numbering import Numbering
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import TERMINATOR, Graph, Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class CommonSubexpressions(Match):
    """Everything a program has twice, found at its return: values to be read elsewhere, and ops
    left without readers.
    """

    values: dict[Value, Value]
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class MergeCommonSubexpressions(Pass[CommonSubexpressions]):
    """Ops and slots that hold the same value become one."""

    name: ClassVar[str] = "merge-common-subexpressions"
    after: ClassVar[tuple[After, ...]] = (
        After("eliminate-dead-code", "of two equal ops the first stays, even if it is dead"),
    )
    cleanup: ClassVar[bool] = True

    primitives: ClassVar[frozenset[str]] = frozenset({TERMINATOR})

    def find(self, op: Op) -> Iterator[CommonSubexpressions]:
        if op.region is not None and isinstance(op.region.owner, Graph):
            numbering = Numbering()
            numbering.visit(op.region, {})
            if numbering.leader:
                says = f"{len(numbering.leader)} values are computed twice"
                yield CommonSubexpressions(op, says, numbering.leader, tuple(numbering.ops))

    def rewrite(self, match: CommonSubexpressions, rw: Rewriter) -> None:
        for old, new in match.values.items():
            rw.replace(old, new)
        for op in reversed(match.ops):
            rw.erase(op)
