"""Apply algebraic identities that follow from an op's operands, or from their ranges.

Before::

    b = mul x 1.0
    i = convert_element_type[new_dtype=int32] p
    q = ne i 0
    y = select_n q x b

After::

    y = x

Each law is a line of `jaxpr_opt.analysis.values.algebra`. Sound when

1. the law holds bit for bit, for NaN, infinities and the bounds of integers, up to the sign of
   zero: x + 0 is x, but x * 0 is not 0; x * 1 is x for real numbers, but not for complex ones
   (1 is 1 + 0i, and 0 * inf is NaN), nor, as max(x, x) is, for numbers without a zero, which XLA
   flushes to one;
2. the replacement has the type of the result: shape, dtype, weak type and sharding. Of arrays that
   are only made weak or strong, the weak type may be another: what a program, a loop or a branch
   hands on is exported with the type that it had;
3. a range holds in every step of the enclosing loops, and nothing can wrap around
   (`jaxpr_opt.analysis.values.induction`).

Cost: every rule removes an op, or replaces it by a canonical one, so that selects on one predicate
are recognised as such: ``not p`` for ``(int)p == 0``, ``p ? a : b`` for a select by a number or by
``not p``. XLA's simplifier has these laws, where they are exact; here they let other passes match.
XLA has no ranges: in a loop over the cells of a table that is filled in place, JAX's ``i < 0 ? i +
n : i`` took a sixth of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.values.algebra import LAWS, Laws, Plainer
from jaxpr_opt.analysis.values.renaming import may_stand_for
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Identity(Match):
    """The op's result is `value`; or, without one, it may read `operands` instead of its own; or
    `plainer` gives it.
    """

    value: Value | None
    operands: tuple[Value, ...] = ()
    plainer: Plainer | None = None


@dataclass(frozen=True)
class Simplify(Pass[Identity]):
    """Remove identities: x * 1, x + 0, a select with equal cases, a truth value made a number and
    back.
    """

    name: ClassVar[str] = "simplify"
    cleanup: ClassVar[bool] = True
    laws: ClassVar[Laws] = LAWS
    primitives: ClassVar[frozenset[str]] = frozenset(LAWS)

    def find(self, op: Op) -> Iterator[Identity]:
        if len(op.results) != 1 or not op.result.uses:
            return
        for law in self.laws[op.name]:
            known = law(op)
            if isinstance(known, tuple):
                yield Identity(op, f"{op.name} of {op.name} is one {op.name}", None, known)
                return
            if isinstance(known, Plainer):
                yield Identity(op, f"{op.name} has a simpler form", None, (), known)
                return
            # Condition 2 of remove-idle-moves.
            if known is not None and may_stand_for(known, op):  # (2)
                yield Identity(op, f"{op.name} changes nothing", known)
                return

    def rewrite(self, match: Identity, rw: Rewriter) -> None:
        if match.value is not None:
            rw.replace(match.op.result, match.value)
            rw.erase(match.op)
        if match.plainer is not None:
            plainer, result = match.plainer, match.op.result
            made = rw.typed(plainer.fun, result.aval, *plainer.operands, before=match.op)
            rw.replace(result, made)
            rw.erase(match.op)
        for index, operand in enumerate(match.operands):
            rw.set_operand(match.op, index, operand)
