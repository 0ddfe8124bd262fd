"""Merge a loop of loops, both of which skip steps, into one loop.

Before::

    scan[n] carry(c=c_0) {
      p = ..c..
      d = cond p { scan[m] carry(b=c) { q = ..b..; e = cond q { step(b) } else { b }; yield
      carry(e) } } else { c } yield carry(d)
    }

After::

    scan[n * m] carry(b=c_0) { q = ..b..; e = cond q { step(b) } else { b }; yield carry(e) }

A bounded while loop written as nested scans has one level per bit of its bound; the levels cost
compile time, and every residual crosses all of them. Its transpose is such a nest, too, because its
predicates are residuals.

Sound when

1. the outer step is the inner loop under the outer predicate `p`, and nothing else: the inner loop
   starts from the outer carries, gives them their next values, and captures nothing else of the
   outer body;
2. a step of the inner loop skips under its predicate `q`, so that a skipped outer step equals `m`
   skipped inner steps: `p` false must make `q` false throughout, which holds if
   - (a) `q` is the same function of the inner carries as `p` of the outer ones, and inner skipped
     steps keep those; or
   - (b) both are known before the loops run: then `q` implies `p` is proved on the masks, or ``p
     and q`` takes its place;
3. rows stacked in skipped steps are unspecified, or the same one value in both loops;
4. a value stacked once per outer step is a function of its carries, so that it can be taken from
   every `m`-th inner step;
5. neither loop has effects or asks to be unrolled, the inner one takes steps, both run in the
   same direction, and an int32, in which JAX counts, holds the steps of both.

A merge that would mostly stack, in each step, what the outer loop stacks once (the carries that the
segments of `replay-segments` start with), does not pay.

A carry that restarts in every outer step (a partial sum, such as the gradient of what all steps
share) prevents the merge: it would sum in another order.

Source: jax#8239.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxpr_opt.analysis.steps.loop_nests import LoopNest, OneLoop, one_loop
from jaxpr_opt.analysis.steps.predicates import predicate_root
from jaxpr_opt.analysis.steps.skips import Skip, find_skips
from jaxpr_opt.builders.steps.merged_loop import merge
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Cond, Op, Scan, Stack
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class LoopOfLoops(Match):
    """A skipping scan whose step is a scan that skips, too."""

    op: Scan
    nest: LoopNest


@dataclass(frozen=True)
class CollapseLoops(Pass[LoopOfLoops]):
    """Loop of loops, both skipping -> one loop."""

    kind: Literal["carried", "upfront"] = "carried"
    """Which nests: those of a loop that stops for good, or those whose predicates are known before
    (its transpose).
    The second wait until `count-steps` has made their masks comparable."""

    name: ClassVar[str] = "collapse-loops"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[LoopOfLoops]:
        conds = [c for c in op.body.ops if isinstance(c, Cond) and len(c.branches) == 2]
        if len(conds) != 1 or (inner := _only_loop(conds[0])) is None:
            return
        for skip in find_skips(op):
            if (
                isinstance(skip, Skip)
                and skip.kind == self.kind
                and predicate_root(conds[0].selector) is skip.predicate
            ):
                n, m = op.length, inner.length
                says = f"{n} times {m} steps in two loops become {n * m} in one"
                yield LoopOfLoops(op, says, LoopNest(skip, inner))

    def refuse(self, match: LoopOfLoops) -> str | None:
        plan = one_loop(match.nest.outer, match.nest)
        if isinstance(plan, OneLoop) and _stacks_more(match.nest, plan):
            return "each step would stack what a step of the outer loop stacks"
        return plan if isinstance(plan, str) else None

    def rewrite(self, match: LoopOfLoops, rw: Rewriter) -> None:
        plan = one_loop(match.nest.outer, match.nest)
        assert isinstance(plan, OneLoop)
        merge(match.nest, plan, rw)


def _stacks_more(nest: LoopNest, plan: OneLoop) -> bool:
    """Whether most of what one loop stacks, and more than more loops cost, is what the outer loop
    stacks once in each step.
    """
    pairs = zip(nest.outer.stacks, plan.sources, strict=True)
    once = [stack for stack, source in pairs if not isinstance(source, Stack)]
    stacked = {stack.value for stack in nest.inner.stacks}
    loops = zip(plan.carries, nest.inner.carries, strict=True)
    made = {outer.param for outer, inner in loops if inner.param in stacked}
    more = sum(s.result.nbytes for s in once if s.value not in made) * nest.inner.length
    rest = sum(s.result.nbytes for s in nest.outer.stacks if s not in once)
    return more > rest and cost_model().is_worth_loops(1, cost_model().filled(more - rest))


def _only_loop(cond: Cond) -> Scan | None:
    """The scan that is all the work of one branch of `cond`, the other doing none."""
    loops = [op for branch in cond.branches for op in branch.ops if op.regions]
    return loops[0] if len(loops) == 1 and isinstance(loops[0], Scan) else None
