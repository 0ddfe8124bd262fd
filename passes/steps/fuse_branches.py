"""Merge two conds on the same predicate into one.

Before::

    r = cond p { f x } else { undefined }
    y = add x x
    g = cond p { mul r y } else { y }

After::

    y = add x x
    g = cond p { mul (f x) y } else { y }

The transpose of a cond under `jax.checkpoint` computes the residuals of the taken branch in one
cond and reads them in another. In one cond, no residual leaves its branch.

Sound when

1. neither has effects or communicates: the second now runs at the place of the first;
2. the operands of the second are defined before the first, or made by ops that can move there; only
   inside its branches may it read results of the first, and there they are what the same branch
   yielded;
3. in a program that is to be split into a forward and a backward half, both are of one half;
4. both choose by one value, and have as many branches.

Cost: it pays if the second reads results of the first, or if only cheap ops are between them.
Source: https://github.com/jax-ml/jax/issues/8239 with `jax.checkpoint` around the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.builders.fences import from_memory
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import backward_slice, depending_on, inputs
from jaxpr_opt.ir.graph import Cond, Graph, Op, Outcome, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import can_move, is_cheap


@dataclass(frozen=True, slots=True, eq=False)
class Pair(Match):
    """Two conds on the same selector, in one region."""

    op: Cond
    first: Cond
    second: Cond


@dataclass(frozen=True)
class FuseBranches(Pass[Pair]):
    """Fuse two conds on the same predicate, so that what one makes for the other stays inside."""

    name: ClassVar[str] = "fuse-branches"
    anchors: ClassVar[tuple[type[Op], ...]] = (Cond,)

    def find(self, op: Cond) -> Iterator[Pair]:
        first = _previous(op)
        if first is not None and _pays(first, op):
            yield Pair(op, "two conds on one predicate become one", first, op)

    def refuse(self, match: Pair) -> str | None:
        first, second = match.first, match.second
        if not (can_move(first) and can_move(second)):  # (1)
            return "a branch has effects or communicates"
        if _crosses_over(first, second):  # (3)
            return "the first cond is in the forward pass, the second in the backward pass"
        results = set(first.results)
        for op in _needed(first, second):
            if not can_move(op):  # (2)
                return f"{op.name} stays between the two conds"
            if not results.isdisjoint(inputs(op)):  # (2)
                return f"the second cond reads {op.name}, which is made from the first"
        return None

    def rewrite(self, match: Pair, rw: Rewriter) -> None:
        first, second = match.first, match.second
        for op in _needed(first, second):
            rw.move(op, first)
        for one, two in zip(first.branches, second.branches, strict=True):
            for result, value in zip(first.results, one.outputs, strict=True):
                if any(map(two.reads, result.uses)):
                    rw.replace(result, from_memory(value, rw), two.reads)
            for op in list(two.ops):
                if not op.is_terminator:
                    rw.move(op, one.terminator)
        outcomes = [
            Outcome(rw.new_value(o.result.aval, o.result.name), o.values) for o in second.outcomes
        ]
        for old, new in zip(second.outcomes, outcomes, strict=True):
            rw.replace(old.result, new.result)
        rw.set_cond(first, [*first.outcomes, *outcomes])
        rw.erase(second)


def _crosses_over(first: Cond, second: Cond) -> bool:
    """Whether only the second depends on a cotangent of a joint program, which is to be split."""
    graph = first.region.owner if first.region is not None else None
    if not isinstance(graph, Graph) or not graph.cotangents:
        return False
    backward = depending_on(graph.cotangents, graph.body.ops)
    return first not in backward and second in backward  # (3)


def _previous(cond: Cond) -> Cond | None:
    """The last cond before this one, on the same selector and in the same region."""
    assert cond.region is not None
    region, found = cond.region, None
    for op in cond.selector.users:
        if isinstance(op, Cond) and op.region is region and op.chooses_with(cond):  # (4)
            earlier = region.order(op) < region.order(cond)
            if earlier and (found is None or region.order(found) < region.order(op)):
                found = op
    return found


def _needed(first: Cond, second: Cond) -> list[Op]:
    """Ops between two conds that the second needs, in order."""
    assert first.region is not None
    region, start = first.region, first.region.order(first)

    def is_before(value: Value) -> bool:
        return value.op is None or value.region is not region or region.order(value.op) <= start

    return backward_slice(inputs(second), is_before)


def _pays(first: Cond, second: Cond) -> bool:
    """Whether fusing saves more than a branch."""
    if not set(first.results).isdisjoint(inputs(second)):
        return True
    between = first.next
    while between is not None and between is not second and is_cheap(between):
        between = between.next
    return between is second
