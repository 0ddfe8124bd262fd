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

Programs that keep a mask as a number ask whether it is above a half, or not zero, here of a row,
there of a column of it. As truth values these are one, also where a loop back reads what is stored
of a forward loop. Sound when

1. it begins as zeros and ones, and steps make zeros and ones of such
   (`jaxpr_opt.analysis.values.flags`), so that its derivative is zero;
2. a comparison tells the two apart in a step, so that each element is looked at; no step writes
   single elements, which would convert all others.

The number is selected, not converted: XLA would see the truth value, and make a select of a product
with it, which loses the NaN of ``0 * NaN``.

Cost: a comparison for each step; what asks about the number goes. A row that is stored takes a
byte, not four.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from jax import lax

from jaxpr_opt.analysis.values.algebra import VIEWS
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.flags import asked, is_flag, is_one
from jaxpr_opt.analysis.windows.window_primitives import SCATTERS, WRITES
from jaxpr_opt.builders.fences import one_or_zero
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Carry, Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class CarriedFlag(Match):
    """A carry that is zero or one."""

    carry: Carry


@dataclass(frozen=True)
class CarryTruthValues(Pass):
    """A carry that is zero or one -> a carried truth value."""

    name: ClassVar[str] = "carry-truth-values"
    cleanup: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Op) -> Iterator[CarriedFlag]:
        assert isinstance(op, Scan)
        for carry in op.carries:
            if carry.param.dtype != bool and _is_asked(carry.param) and is_flag(carry.param):  # (1)
                says = f"{carry.param.label} is always zero or one, so a truth value is carried"
                yield CarriedFlag(op, says, carry, about=carry.param)

    def refuse(self, match: CarriedFlag) -> str | None:
        if any(user.name in WRITES | SCATTERS for user in match.carry.param.users):  # (2)
            return "a step writes some of its elements"
        return None

    def rewrite(self, match: CarriedFlag, rw: Rewriter) -> None:
        scan, old = match.op, match.carry
        assert isinstance(scan, Scan)
        number = uniform(old.init)
        known = partial(lax.full_like, fill_value=number != 0, dtype=bool)
        begin = is_one if number is None else known
        begun = rw.insert(begin, old.init, before=scan)
        param, result = (rw.new_value(begun.aval, v.name) for v in (old.param, old.result))
        assert scan.body.first is not None and scan.next is not None
        rw.replace(old.param, _number(param, old.param, scan.body.first, rw))
        rw.replace(old.result, _number(result, old.result, scan.next, rw))
        (end,) = (c.next for c in scan.carries if c.param is old.param)
        new = Carry(begun, param, rw.insert(is_one, end, before=scan.body.terminator), result)
        rw.set_scan(scan, carries=[new if c.param is old.param else c for c in scan.carries])


def _number(truth: Value, like: Value, before: Op, rw: Rewriter) -> Value:
    """A truth value as the number that it stands for, which NaN may be multiplied with."""
    return rw.typed(lambda p: one_or_zero(p, like.dtype), like.aval, truth, before=before)


def _is_asked(value: Value) -> bool:
    """Whether a comparison tells whether a value, or a view of it, is zero or one (2)."""
    pending = [value]
    for each in pending:
        for user in each.users:
            question = asked(user) if user.operands else None
            if question is not None and question[0] is each:
                return True
            if user.name in VIEWS:
                pending += user.results
    return False
