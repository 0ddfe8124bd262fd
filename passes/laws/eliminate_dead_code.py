"""Remove ops and values that nothing reads, through every kind of region.

Before::

    h, k, r = scan[8] carry(c=c0, d=d0) xs(x=xs, y=ys) {
      t = sin y
      e = add d t
      f = add c x
      yield carry(f, e) ys(t)
    }
    return h

After::

    h = scan[8] carry(c=c0) xs(x=xs) {
      f = add c x
      yield carry(f)
    }
    return h

Liveness propagates backwards: what the program returns and what has effects is live, and so are the
operands of a live value. A carry that feeds only itself is never reached, so loops need no
fixpoint.

Sound when

1. the op, and every op inside it, has no effects;
2. a carry is kept whole: if its parameter or its result is live, so are its `init` and its `next`;
3. the predicate of a live `while` and the selector of a live `cond` stay: they decide what runs;
4. a `Call` keeps its operands and results: its signature is part of its meaning (shardings,
   donation).

A `while` that never ends and has no effects is removed like any other op, as in JAX.

Cost: linear in the size of the program.
Source: jaxpr dead code elimination (`jax.interpreters.partial_eval.dce_jaxpr`), here once for all
regions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxpr_opt.analysis.values.live_values import Liveness, is_dead, live_slots
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import TERMINATOR, Cond, Graph, Op, Region, Remat, Scan, While
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class DeadCode(Match):
    """Everything dead in a program, found at its return."""

    live: Liveness


@dataclass(frozen=True)
class EliminateDeadCode(Pass[DeadCode]):
    """Remove ops, carries, streams, stacks and branch results that nobody reads."""

    name: ClassVar[str] = "eliminate-dead-code"
    cleanup: ClassVar[bool] = True
    at_once: ClassVar[bool] = True

    primitives: ClassVar[frozenset[str]] = frozenset({TERMINATOR})

    def find(self, op: Op) -> Iterator[DeadCode]:
        if op.region is None or not isinstance(op.region.owner, Graph):
            return
        live = Liveness(op.region)
        suspects = (o for o in op.region.walk() if o.regions or o not in live.ops)
        dead = sum(is_dead(each, live) for each in suspects)
        if dead:
            yield DeadCode(op, f"{dead} ops or values are dead", live)

    def rewrite(self, match: DeadCode, rw: Rewriter) -> None:
        assert match.op.region is not None
        _sweep(match.op.region, match.live, rw)


def _sweep(region: Region, live: Liveness, rw: Rewriter) -> None:
    """Erase backwards, so that the readers of a dead value are gone before it."""
    op: Op | None = region.last
    while op is not None:
        before = op.prev
        if not op.is_terminator and op not in live.ops:
            rw.erase(op)
        elif op.regions:
            if is_dead(op, live):
                _trim(op, live_slots(op, live), rw)
            for inner in op.regions:
                _sweep(inner, live, rw)
        op = before


def _trim(op: Op, kept: list[bool], rw: Rewriter) -> None:
    """Drop the dead slots of a structured op."""

    def alive(slots: Iterable[Any], flags: Iterable[bool]) -> list[Any]:
        return [slot for slot, flag in zip(slots, flags, strict=True) if flag]

    match op:
        case Scan():
            n, m = op.num_carries, len(op.operands)
            carries, streams = alive(op.carries, kept[:n]), alive(op.streams, kept[n:m])
            rw.set_scan(op, carries=carries, streams=streams, stacks=alive(op.stacks, kept[m:]))
        case While():
            rw.set_while(op, alive(op.carries, kept), alive(range(len(kept)), kept))
        case Cond():
            rw.set_cond(op, alive(op.outcomes, kept))
        case Remat():
            rw.set_results(op, alive(op.results, kept), op.body, alive(op.body.outputs, kept))
