"""Stack results of different branches as one.

Before::

    c, r, t = scan[8] carry(c=z) xs(p=ps) {
      d, q, o = cond p {
        e = exp c
        u = undefined
        yield f e, e, u
      } else {
        s = sin c
        u = undefined
        yield g s, u, s
      }
      yield carry(d) ys(q, o)
    }

After::

    c, r = scan[8] carry(c=z) xs(p=ps) {
      d, q = cond p { e = exp c; yield f e, e } else { s = sin c; yield g s, s }
      yield carry(d) ys(q)
    }

What reads a result only if one branch was taken does not mind what it is if another one was: each
of two such results may be the other one there. Sound when

1. both are results of one cond, in each branch of which one of them is unspecified; then it may be
   any value;
2. both have the same type.

Cost: none; a stack less. Results that are the same value where they are specified are joined first.
Source: as `split-branch-results`; JAX does this once, before it is known what must be stored.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.values.constants import identity, is_undefined
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Disjoint(Match):
    """Two results of which each is unspecified where the other one is not."""

    op: Scan
    cond: Cond
    left: Outcome
    right: Outcome


@dataclass(frozen=True)
class JoinBranchResults(Pass[Disjoint]):
    """Results of different branches -> one result."""

    name: ClassVar[str] = "join-branch-results"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    needs: ClassVar[frozenset[str]] = frozenset({"cond"})

    def find(self, op: Scan) -> Iterator[Disjoint]:
        stacked = {stack.value for stack in op.stacks}
        for cond in op.body.ops if stacked else ():
            pair = _pair(cond, stacked) if isinstance(cond, Cond) else None
            if pair is not None and isinstance(cond, Cond):
                left, right = pair
                says = f"{right.result.label} is stacked as {left.result.label} is"
                yield Disjoint(op, says, cond, left, right, at=cond, about=right.result)

    def rewrite(self, match: Disjoint, rw: Rewriter) -> None:
        scan, cond, left, right = match.op, match.cond, match.left, match.right
        values = tuple(
            b if is_undefined(a) else a for a, b in zip(left.values, right.values, strict=True)
        )
        rw.replace(right.result, left.result)
        joined = {left.result: Outcome(left.result, values)}
        outcomes = [joined.get(o.result, o) for o in cond.outcomes]
        rw.set_cond(cond, [o for o in outcomes if o.result is not right.result])
        first, *others = (s for s in scan.stacks if s.value is left.result)
        for other in others:
            rw.replace(other.result, first.result)
        rw.set_scan(scan, stacks=[s for s in scan.stacks if s not in others])


def _pair(cond: Cond, stacked: set[Value]) -> tuple[Outcome, Outcome] | None:
    """Two stacked results that may be one; of the same value, if there are such."""
    partly = [
        outcome
        for outcome in cond.outcomes
        if outcome.result in stacked and any(map(is_undefined, outcome.values))
    ]
    found = [
        (left, right)
        for k, left in enumerate(partly)
        for right in partly[k + 1 :]
        if _may_be_one(left, right)
    ]
    alike = (each for each in found if len(_given(*each)) == 1)
    return next(alike, found[0] if found else None)


def _may_be_one(left: Outcome, right: Outcome) -> bool:
    if left.result.aval != right.result.aval:  # (2)
        return False
    pairs = zip(left.values, right.values, strict=True)
    return all(is_undefined(a) or is_undefined(b) for a, b in pairs)  # (1)


def _given(*outcomes: Outcome) -> set[Hashable]:
    values = (value for outcome in outcomes for value in outcome.values)
    return {identity(value) for value in values if not is_undefined(value)}
