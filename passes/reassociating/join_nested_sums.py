"""Let an inner loop go on with a sum, instead of starting one of its own that is added to it.

Before::

    c = scan[n] carry(c=z) xs(x=xs) {
      s = scan[m] carry(s=z1) xs(y=x) {
        t = f y
        s1 = add s t
        yield carry(s1)
      }
      c1 = add c s
      yield carry(c1)
    }

After::

    c = scan[n] carry(c=z) xs(x=xs) {
      s = scan[m] carry(s=c) xs(y=x) {
        t = f y
        s1 = add s t
        yield carry(s1)
      }
      yield carry(s)
    }

The gradient of nested loops by what all steps share: each level fills an array with zeros, and adds
all of it to the next level's. Sound, up to rounding, when

1. the inner loop only adds to a carry that starts at zero, and only the sum reads it afterwards;
2. what it is added to has its type, and is there before the inner loop.

Cost: an array less to fill, to add and to hold. In loops only, and not if what it is added to is
read afterwards: XLA would copy it.
Source: https://github.com/jax-ml/jax/issues/8239, in its nested form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.values.accumulators import accumulators
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.enclosing import is_read_after
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Carry, Op, Scan, Value
from jaxpr_opt.ir.nesting import dominates, is_in_a_loop
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class SumOfLoop(Match):
    """The op adds what an inner loop has added up to `total`."""

    loop: Scan
    carry: Carry
    total: Value


@dataclass(frozen=True)
class JoinNestedSums(Pass[SumOfLoop]):
    """A sum with what a loop has added up -> the loop adds to it."""

    name: ClassVar[str] = "join-nested-sums"
    primitives: ClassVar[frozenset[str]] = SUMS
    needs: ClassVar[frozenset[str]] = frozenset({"scan"})

    @property
    def reassociates(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[SumOfLoop]:
        if not is_in_a_loop(op):
            return
        for total, term in (op.operands, op.operands[::-1]):
            loop = term.op
            if not isinstance(loop, Scan) or loop.region is not op.region:
                continue
            for accumulator in accumulators(loop):
                carry = accumulator.carry
                if carry.result is term and uniform(carry.init) == 0:  # (1)
                    says = (
                        f"a loop adds to {total.label}, not to {bytes_text(term.nbytes)} of zeros"
                    )
                    yield SumOfLoop(op, says, loop, carry, total, about=op.result)

    def refuse(self, match: SumOfLoop) -> str | None:
        op, total, term = match.op, match.total, match.carry.result
        if len(term.uses) > 1:  # (1)
            return f"{term.label} is read elsewhere"
        if not total.aval == term.aval == op.result.aval:  # (2)
            return f"{total.label} is a {total.exact_type}, what is added a {term.exact_type}"
        if not dominates(total, match.loop):  # (2)
            return f"{total.label} is computed after the inner loop"
        if is_read_after(total, op):
            return f"{total.label} is read afterwards, so XLA would copy it"
        return None

    def rewrite(self, match: SumOfLoop, rw: Rewriter) -> None:
        op, loop, carry = match.op, match.loop, match.carry
        rw.set_operand(loop, loop.results.index(carry.result), match.total)
        rw.replace(op.result, carry.result)
        rw.erase(op)
