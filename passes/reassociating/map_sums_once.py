"""Add up what a linear map takes, and apply the map once, after the loop.

Before::

    c = scan[8] carry(c=z) xs(x=xs) {
      d = dot_general w x
      c1 = add_any c d
      yield carry(c1)
    }

After::

    s = scan[8] carry(s=z1) xs(x=xs) {
      s1 = add s x
      yield carry(s1)
    }
    d = dot_general w s
    c = add z d

What is computed in each step from outer values, as the softmax of a table of which a step reads a
row, is computed once before the loop. But its derivative stays: each step of the loop back maps a
cotangent through all of it, before it is added. Sound, up to rounding, when

1. no step reads the sum, and the loop adds nothing else to it;
2. what leads from the values that are added up instead to the terms is linear in them, by ops
   without effects that need nothing else of a step;
3. the loop takes a step, so that nothing new is computed;
4. the values are no less precise than the sum.

Where a coefficient of the map is infinite, so may be the result where it was NaN before, or
the other way round.

Cost: the map runs once, not in each step. It fires if what is added up is no larger than the sum,
and a step saves more than starting an op takes.
Source: reverse mode sums cotangents before it maps them wherever a value is used several times; a
scan hides that the uses in its steps are of one value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jax import lax

from jaxpr_opt.analysis.residuals.mapped_sums import MappedSum, mapped_sum
from jaxpr_opt.analysis.values.accumulators import accumulators
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Carry, Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class SumOfMaps(Match):
    """A loop adds up linear maps of something."""

    op: Scan
    found: MappedSum


@dataclass(frozen=True)
class MapSumsOnce(Pass[SumOfMaps]):
    """A sum of linear maps in a loop -> the map of a sum, after it."""

    name: ClassVar[str] = "map-sums-once"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    @property
    def reassociates(self) -> bool:
        return True

    def find(self, op: Scan) -> Iterator[SumOfMaps]:
        if op.length == 0:  # (3)
            return
        for accumulator in accumulators(op):  # (1)
            found = mapped_sum(op, accumulator)  # (2, 4)
            if found is not None:
                names = ", ".join(each.name for each in found.ops)
                says = f"{names}: once after the loop, of a sum of {_text(found)}"
                yield SumOfMaps(op, says, found, about=accumulator.carry.result)

    def refuse(self, match: SumOfMaps) -> str | None:
        found, total = match.found, match.found.accumulator.carry.param
        if found.nbytes > total.nbytes:
            return f"a sum of {_text(found)} is larger than {total.label}"
        if found.saved <= cost_model().started(1):
            return "the map takes no longer than the sum"
        return None

    def rewrite(self, match: SumOfMaps, rw: Rewriter) -> None:
        scan, found = match.op, match.found
        assert scan.next is not None
        old, after = found.accumulator.carry, scan.next
        kept = [carry for carry in scan.carries if carry.result is not old.result]
        added = [_added_up(leaf, scan, rw) for leaf in found.leaves]
        sums = {leaf: carry.result for leaf, carry in zip(found.leaves, added, strict=True)}
        mapped = rw.clone(found.ops, sums, after)
        start = [] if uniform(old.init) == 0 else [old.init]
        total, *terms = [*start, *(mapped[term] for term in found.accumulator.terms)]
        for term in terms:
            total = rw.typed(lax.add, old.result.aval, total, term, before=after)
        rw.replace(old.result, total)
        rw.set_scan(scan, carries=[*kept, *added])
        for op in (*reversed(found.accumulator.sums), *reversed(found.ops)):
            if not any(v.uses for v in op.results):
                rw.erase(op)


def _text(found: MappedSum) -> str:
    return f"{', '.join(v.label for v in found.leaves)} ({bytes_text(found.nbytes)})"


def _added_up(value: Value, scan: Scan, rw: Rewriter) -> Carry:
    """A carry that adds up a value of each step."""
    zeros = rw.full(0, value.aval, before=scan)
    param, result = rw.new_value(value.aval, value.name), rw.new_value(value.aval, value.name)
    plus = rw.typed(lax.add, value.aval, param, value, before=scan.body.terminator)
    return Carry(zeros, param, plus, result)
