"""Run a loop that may stop early again where its residuals are read, if it is part of a step.

Before::

    c_n, r = scan[n] carry(c=c_0) {
      d, v = scan[m] carry(d=c) { e, h = cond p(d) { f(d), g(d) } else { d, 0 }; .. ys(h) }
      yield carry(d) ys(v)
    }
    a_n = scan[n, reverse] carry(a=a_0) xs(v=r) { b = scan[m, reverse] carry(a=a) xs(h=v) .. }

After::

    c_n, s, q = scan[n] carry(c=c_0) {
      d, t = scan[m] carry(d=c) { e = cond p(d) { f(d) } else { d }; .. ys(p(d)) }
      yield carry(d) ys(c, t)
    }
    a_n = scan[n, reverse] carry(a=a_0) xs(c=s, t=q) {
      _, v = scan[m] carry(d=c) xs(t) { e, h = cond t { f(d), g(d) } else { d, 0 }; .. ys(h) }
      b = scan[m, reverse] carry(a=a) xs(h=v) ..
      yield carry(b)
    }

A solver in each time step, or an answer that is refined for each word, has a bound of m steps and
takes a few. Each step of the loop around it stores m rows, whatever it takes. Run again, the inner
loop stores its rows for one step of the outer loop at a time, and `replay-steps` looks at it there.

The cut is made before the inner loop, or at the start of the outer step, whichever costs less.

Sound when

1. every use of a residual is row by row, in a loop or a nest of loops of as many steps as the outer
   loop has;
2. what is run again has no effects, terminates, and is nothing that XLA may divide over devices;
3. the inner loop takes the steps again that it took: it is told by the predicates of its steps,
   which are stored. What other loops make, and what comparisons say of what XLA may round
   otherwise, stays stored; truth values that are one number in all skipped steps do, too.

Cost: one more step of the inner loop for each that is taken, and no rows of those that are not. It
fires only if storing the rows of all takes so much longer than running *one* again that a loop more
is worth it.
Source: Griewank and Walther, "Evaluating Derivatives", ch. 12 (store or replay).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.inner_loops import InnerLoop, cut_before, inner_loops, seconds
from jaxpr_opt.builders.residuals.inner_replay import replay_inner
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_divided
from jaxpr_opt.ir.graph import Op, Scan
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import is_speculable
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class Replayed(Match):
    """A loop that may stop early, in the step of another."""

    op: Scan
    inner: InnerLoop


@dataclass(frozen=True)
class ReplayInnerLoops(Pass[Replayed]):
    """Residuals of a loop in a step -> what the loop starts with, and the loop run again."""

    name: ClassVar[str] = "replay-inner-loops"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[Replayed]:
        for each in inner_loops(op):
            says = f"at most {each.loop.length} steps are run again, not stored {op.length} times"
            what = f"{says}: {bytes_text(each.old_bytes)}"
            yield Replayed(op, what, each, at=each.loop, about=each.residuals[0][1])

    def refuse(self, match: Replayed) -> str | None:
        inner, model = match.inner, cost_model()
        found = cut_before(inner.loop, inner.path, inner.residuals)
        for op in found.ops:
            if not is_speculable(op):  # (2)
                return f"replaying it would repeat {op.name}"
            if is_divided(op):  # (2)
                return f"XLA may insert a collective into {op.name}, and replaying would repeat it"
        stored = model.stored(inner.old_bytes) - model.stored(inner.marked)
        saved = stored / inner.scan.length - seconds(inner.loop, found)
        if not model.is_worth_loops(1, saved):
            return "storing the rows of all steps takes no longer than running one again"
        return None

    def rewrite(self, match: Replayed, rw: Rewriter) -> None:
        replay_inner(match.inner, rw)
