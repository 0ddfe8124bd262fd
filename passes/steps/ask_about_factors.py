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

Batches of sequences of different lengths come with a mask of floats: ``m * new + (1 - m) * old``.
Nothing says that the mask is zeros and ones. But where it is zero, the step keeps the state,
whatever the mask is elsewhere. ``ne m 0.0`` is a truth value by which other passes skip steps and
end the loop early. Of two masks, for two states that end at lengths of their own, one truth value
asks whether both are zero. Sound when

1. the number stays the same: both cases of the select are `m`. So are derivatives.

It fires if a step with a zero row, or with as few such rows as it needs, changes nothing, or
nothing that is read, given that zero times what else it computes is zero
(`jaxpr_opt.analysis.steps.skips`), and if no other predicate skips steps of the loop. Each row must
be one of an argument, or of truth values that were converted before the loop, and smaller than a
carry, as one number for each row of a batch is. A single number for a whole step is rather a rate
or a length of time, so it must also be subtracted from one; so must each of several rows, which may
be scales: a transformer of which all are zero does nothing. A row that a product multiplies by
weights of all steps is data, such as the inputs of a selective scan, which scale what they are
mapped to. In the backward half of a gradient nothing fires: masks were asked about before the
gradient was split.

Cost: none. Where no loop ends early, XLA drops the question.
Source: masks of padded sequences, as those of `optax.ctc_loss`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.steps.given_masks import may_be_a_mask
from jaxpr_opt.analysis.steps.skips import is_skipped_at
from jaxpr_opt.analysis.values.flags import is_negation
from jaxpr_opt.builders.steps.flag_rows import asked_about
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import source_through, users_through
from jaxpr_opt.ir.graph import Op, Phase, Scan, Value
from jaxpr_opt.ir.nesting import program_of
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import VIEWING


@dataclass(frozen=True, slots=True, eq=False)
class Factor(Match):
    """Rows of streams that are multiplied by."""

    op: Scan
    rows: tuple[Value, ...]


@dataclass(frozen=True)
class AskAboutFactors(Pass[Factor]):
    """Factor of a step that changes nothing where it is zero -> number that is asked about."""

    name: ClassVar[str] = "ask-about-factors"
    phase: ClassVar[Phase] = "differentiated"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[Factor]:
        program = program_of(op)
        if program is not None and program.is_backward:
            return  # its arguments are residuals, and what is asked was asked before it was split
        masked = max((carry.param.size for carry in op.carries), default=0)
        rows = [s.param for s in op.streams if _may_be_factor(s.param, masked)]
        if needed := _needed(op, rows):
            names = " and ".join(row.label for row in needed)
            asked = "is asked whether it is zero"
            if len(needed) > 1:
                asked = "are asked whether all of them are zero"
            yield Factor(op, f"{names} {asked}", needed, about=needed[0])

    def rewrite(self, match: Factor, rw: Rewriter) -> None:
        scan, (row, *others) = match.op, match.rows
        assert scan.body.first is not None
        uses = set(row.uses)
        new = rw.typed(asked_about, row.aval, row, *others, before=scan.body.first)
        rw.replace(row, new, uses.__contains__)  # (1)


def _may_be_factor(row: Value, masked: int) -> bool:
    """Whether a row is multiplied by as by a mask of so many elements."""
    made = _made_of(row)
    is_rate = row.size == 1 and "sub" not in made
    return "mul" in made and not is_rate and not _is_mapped(row) and may_be_a_mask(row, masked)


def _is_mapped(row: Value) -> bool:
    """Whether a product multiplies a row by weights: by what is there before the step, moved."""
    step, products = row.region, [op for op in _readers(row) if op.name == "dot_general"]
    factors = (source_through(each, _moves) for product in products for each in product.operands)
    return step is not None and not all(map(step.defines, factors))


def _needed(scan: Scan, rows: Sequence[Value]) -> tuple[Value, ...]:
    """The first row with which a step does nothing if it is zero; else as few as do so together."""
    alone = next((row for row in rows if is_skipped_at(scan, [row])), None)
    if alone is not None:
        return (alone,)
    rows = [row for row in rows if "sub" in _made_of(row)]
    if len(rows) < 2 or not is_skipped_at(scan, rows):
        return ()
    for row in rows:
        others = [other for other in rows if other is not row]
        if is_skipped_at(scan, others):
            rows = others
    return tuple(rows)


def _made_of(row: Value) -> set[str]:
    """The names of the ops that read a row, or its moves: products, and differences from one."""
    return {op.name for op in _readers(row) if op.name == "mul" or is_negation(op)}


def _readers(row: Value) -> Iterator[Op]:
    """The ops that read a row, or its moves."""
    return users_through(row, _moves)


def _moves(op: Op) -> bool:
    return op.name in VIEWING
