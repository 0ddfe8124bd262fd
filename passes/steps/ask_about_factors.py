"""Ask whether a factor of a step is zero, where such a step changes nothing.

Before::

    h_n = scan[300] carry(h=h_0) xs(x=xs, m=mask) {
      h1 = add (mul m (step h x)) (mul (sub 1.0 m) h)
      yield carry(h1)
    }

After::

    h_n = scan[300] carry(h=h_0) xs(x=xs, m=mask) {
      k = select_n (ne m 0.0) m m
      h1 = add (mul k (step h x)) (mul (sub 1.0 k) h)
      yield carry(h1)
    }

Sequences of different lengths come with a mask of floats, ``m * new + (1 - m) * old``, of which
nothing tells that it is zeros and ones. Where it is zero, the step leaves the state alone, whatever
it is elsewhere. The question is a truth value by which loops skip steps and end early; what is
asked is the number as it is, so that values and derivatives stay what they were. Sound when

1. the number is what it was.

It fires where a step with such a row changes nothing, or nothing that is read, if zero times what
else it computes is zero (`jaxpr_opt.analysis.steps.skips`), and the loop does not skip by another
predicate. It asks about arguments, of fewer numbers than a carry: those that a batch is multiplied
by, or that are subtracted from one, too. One number of each step is rather a rate, or a length of
time, and never zero. Those of a backward half are residuals: masks were asked before it was split.

Cost: none. Where no loop ends early, XLA drops the question.
Source: masks of padded sequences, as those of `optax.ctc_loss`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.steps.given_masks import may_be_a_mask
from jaxpr_opt.analysis.steps.skips import is_skipped_at
from jaxpr_opt.analysis.values.flags import is_negation
from jaxpr_opt.builders.flag_rows import asked_about
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import users_through
from jaxpr_opt.ir.graph import Op, Phase, Scan, Value
from jaxpr_opt.ir.nesting import program_of
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import VIEWING


@dataclass(frozen=True, slots=True, eq=False)
class Factor(Match):
    """A row of a stream that is multiplied by."""

    row: Value


@dataclass(frozen=True)
class AskAboutFactors(Pass):
    """Factor of a step that changes nothing where it is zero -> number that is asked about."""

    name: ClassVar[str] = "ask-about-factors"
    phase: ClassVar[Phase] = "differentiated"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Op) -> Iterator[Factor]:
        assert isinstance(op, Scan)
        program = program_of(op)
        if program is not None and program.is_backward:
            return  # its arguments are residuals, and what is asked was asked before it was split
        masked = max((carry.param.size for carry in op.carries), default=0)
        for stream in op.streams:
            row = stream.param
            made = _made_of(row)
            if "mul" not in made or (row.size == 1 and "sub" not in made):
                continue
            if may_be_a_mask(row, masked) and is_skipped_at(op, row):
                yield Factor(op, f"{row.label} is asked whether it is zero", row, about=row)

    def rewrite(self, match: Factor, rw: Rewriter) -> None:
        scan, row = match.op, match.row
        assert isinstance(scan, Scan) and scan.body.first is not None
        uses = set(row.uses)
        new = rw.typed(asked_about, row.aval, row, before=scan.body.first)
        rw.replace(row, new, uses.__contains__)  # (1)


def _made_of(row: Value) -> set[str]:
    """What is made of a row, or of its moves: products, and differences from one."""
    users = users_through(row, lambda op: op.name in VIEWING)
    return {op.name for op in users if op.name == "mul" or is_negation(op)}
