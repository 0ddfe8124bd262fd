"""Sum up the rows of a batch in each step of a loop, not what the loop has made for each row.

Before::

    c = scan[8] carry(c=z) xs(x=xs, y=ys) {
      d = dot_general[batch=0x0] x y        # a gradient for each row
      a = add_any c d
      yield carry(a)
    }
    s = select_n p z c
    r = reduce_sum[axes=(0,)] s

After::

    r = scan[8] carry(c=z1) xs(x=xs, y=ys) {
      d = dot_general[batch=0x0] x y
      s = select_n p z d
      t = reduce_sum[axes=(0,)] s           # sum-batches-at-once makes one product of it
      a = add_any c t
      yield carry(a)
    }

The mean of the gradients of a batch, each through a loop: ``vmap(grad(loss))``, then ``mean``. Each
row carries a gradient of all weights, or stacks one for each step. Sound, up to rounding, when

1. nothing else reads what the loop makes of them;
2. of a stack, rows of each step are summed up, or chosen, not steps;
3. what chooses rows is known before the loop begins;
4. numbers are no less precise than float32: those of fewer bits lose some in each step;
5. no type says which device holds which rows.

Cost: an array for all rows instead of one for each. It fires where writing these in a step takes
longer than starting the sum.
Source: the gradient of the mean, instead of the mean of gradients, has this form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.batches.batch_sums import SumOfTerms, sum_of_terms
from jaxpr_opt.analysis.batches.summed_in_steps import SummedInSteps, summed_in_steps
from jaxpr_opt.builders.batches.batch_sums import make_sum
from jaxpr_opt.builders.batches.sums_in_steps import drop, sum_in_steps
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, is_sized
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class LoopOfRows(Match):
    """A sum over a batch of what loops make for each of its rows."""

    found: SumOfTerms
    parts: tuple[SummedInSteps, ...]


@dataclass(frozen=True)
class SumInSteps(Pass[LoopOfRows]):
    """A sum over a batch of what a loop makes -> sums in its steps."""

    name: ClassVar[str] = "sum-in-steps"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"reduce_sum"})
    needs: ClassVar[frozenset[str]] = frozenset({"scan"})

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[LoopOfRows]:
        if not is_sized(op.operands[0].shape) or is_sharded(op.operands[0]):  # (5)
            return
        found = sum_of_terms(op)
        parts = [summed_in_steps(term, op) for term in found.terms] if found else []
        if found is not None and any(parts):
            known = tuple(part for part in parts if part)
            one = bytes_text(op.result.nbytes)
            says = f"each step sums up {one} for all rows, not for each"
            yield LoopOfRows(op, says, found, known, about=known[0].term.array)

    def refuse(self, match: LoopOfRows) -> str | None:
        model = cost_model()
        if not any(model.is_less_without_copies(part.spared) for part in match.parts):
            return "writing a row for each takes no longer than starting a sum"
        return None

    def rewrite(self, match: LoopOfRows, rw: Rewriter) -> None:
        known = {part.term: sum_in_steps(part, match.op, rw) for part in match.parts}
        rw.replace(match.op.result, make_sum(match.found, rw, known))
        for each in match.found.ops:
            rw.erase(each)
        for part in match.parts:
            drop(part, rw)
