"""Make residuals in the branch that reads them: one cond for two on a predicate, remat inside it.

Before::

    remat {
      r = cond p { f x } else { undefined }
      g = cond p { f_transposed r ct } else { ct }
      yield g
    }

After::

    cond p {
      remat { f_transposed (f x) ct }
    } else {
      ct
    }

The transpose of a checkpointed cond first computes the residuals of the branch taken, in one cond,
then reads them in another.

Two conds on one selector fuse, at the place of the first, when

1. neither has effects or communicates: one of them now runs earlier, their ops side by side;
2. what the second reads is defined before the first, or made by ops that can move there; only its
   branches may read results of the first, and there they read what the same branch yielded;
3. it pays: the second reads results of the first, or nothing else is between them.

A remat of a cond becomes a cond of remats when

4. the remat holds one cond, and otherwise only cheap ops, few enough to be repeated in each branch;
5. nothing in it has effects;
6. the selector comes from outside, or is made by cheap ops: they are repeated outside too.

A remat without ops is no remat.

Cost: the residuals never leave the branch; each branch is recomputed only where it is taken.
Source: https://github.com/jax-ml/jax/issues/8239 with `jax.checkpoint` around the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.ir import Cond, Op, Outcome, Region, Remat, Value, backward_slice
from jaxpr_opt.pipeline import Match, Pass
from jaxpr_opt.rewriter import Rewriter
from jaxpr_opt.traits import can_move, is_cheap

MAX_REPEATED = 32
"""Ops beside the cond in a remat: more would make the program too large."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair(Match):
    """Two conds on the same selector, in one region."""

    first: Cond
    second: Cond


@dataclass(frozen=True, slots=True, eq=False)
class RematOfCond(Match):
    """A remat around a cond."""

    remat: Remat
    cond: Cond


@dataclass(frozen=True, slots=True, eq=False)
class EmptyRemat(Match):
    """A remat that computes nothing."""


@dataclass(frozen=True)
class PushRematIntoBranches(Pass):
    """Fuse conds on the same predicate and recompute inside of their branches only."""

    name: ClassVar[str] = "push-remat-into-branches"
    anchors: ClassVar[tuple[type[Op], ...]] = (Cond, Remat)

    def find(self, op: Op) -> Iterator[Match]:
        if isinstance(op, Cond):
            first = _previous(op)
            if first is not None and _pays(first, op):
                yield Pair(op, "two conds on one predicate are one cond", first, op)
        elif isinstance(op, Remat):
            conds = [each for each in op.body.ops if isinstance(each, Cond)]
            if len(conds) == 1:
                yield RematOfCond(op, "each branch is recomputed where it is taken", op, conds[0])
            elif op.body.first is op.body.last:
                yield EmptyRemat(op, "nothing is recomputed")

    def refuse(self, match: Match) -> str | None:
        match match:
            case Pair():
                return _why_apart(match.first, match.second)
            case RematOfCond():
                return _why_outside(match.remat, match.cond)
        return None

    def rewrite(self, match: Match, rw: Rewriter) -> None:
        match match:
            case Pair():
                _fuse(match.first, match.second, rw)
            case RematOfCond():
                _push(match.remat, match.cond, rw)
            case EmptyRemat():
                assert isinstance(match.op, Remat)
                for result, value in zip(match.op.results, match.op.body.outputs, strict=True):
                    rw.replace(result, value)
                rw.erase(match.op)


def _previous(cond: Cond) -> Cond | None:
    """The last cond before this one, on the same selector and in the same region."""
    assert cond.region is not None
    region, found = cond.region, None
    for op in cond.selector.users:
        if isinstance(op, Cond) and op.region is region and op.selector is cond.selector:
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

    captured = [v for branch in second.branches for v in branch.captures()]
    return backward_slice(captured, is_before)


def _pays(first: Cond, second: Cond) -> bool:
    """Whether fusing saves more than a branch (3)."""
    results = set(first.results)
    if any(v in results for branch in second.branches for v in branch.captures()):
        return True
    between = first.next
    while between is not None and between is not second and is_cheap(between):
        between = between.next
    return between is second


def _why_apart(first: Cond, second: Cond) -> str | None:
    if not (can_move(first) and can_move(second)):  # (1)
        return "a branch has effects or communicates"
    results = set(first.results)
    for op in _needed(first, second):  # (2)
        if not can_move(op):
            return f"{op.name} stays between the two conds"
        inputs = {*op.operands, *(v for region in op.regions for v in region.captures())}
        if not results.isdisjoint(inputs):
            return f"{op.name}, computed from the first cond, is read by the second"
    return None


def _fuse(first: Cond, second: Cond, rw: Rewriter) -> None:
    for op in _needed(first, second):
        rw.move(op, first)
    for one, two in zip(first.branches, second.branches, strict=True):
        for outcome, value in zip(first.results, one.outputs, strict=True):
            rw.replace(outcome, value, lambda use, two=two: two.contains(use.op.region))
        for op in list(two.ops):
            if not op.is_terminator:
                rw.move(op, one.terminator)
    outcomes = [
        Outcome(rw.new_value(o.result.aval, o.result.name), o.values) for o in second.outcomes
    ]
    for outcome, made in zip(second.outcomes, outcomes, strict=True):
        rw.replace(outcome.result, made.result)
    rw.set_cond(first, [*first.outcomes, *outcomes])
    rw.erase(second)


def _beside(remat: Remat, cond: Cond) -> tuple[list[Op], list[Op]]:
    """The ops of a remat before and after its cond."""
    before: list[Op] = []
    after: list[Op] = []
    ops = before
    for op in remat.body.ops:
        if op is cond:
            ops = after
        elif not op.is_terminator:
            ops.append(op)
    return before, after


def _why_outside(remat: Remat, cond: Cond) -> str | None:
    before, after = _beside(remat, cond)
    dear = [op for op in (*before, *after) if not is_cheap(op)]
    if dear:  # (4)
        return f"{dear[0].name} is recomputed whichever branch is taken"
    if len(before) + len(after) > MAX_REPEATED:
        return f"{len(before) + len(after)} ops beside the cond would be repeated in each branch"
    if not can_move(remat):  # (5)
        return "a branch has effects or communicates"
    return None


def _push(remat: Remat, cond: Cond, rw: Rewriter) -> None:
    before, after = _beside(remat, cond)
    outside: dict[Value, Value] = {}
    made_inside = backward_slice([cond.selector], lambda v: not remat.body.defines(v))
    rw.clone(made_inside, outside, remat)  # (6)
    regions = []
    for branch in cond.branches:
        inner = rw.new_region()
        local = rw.clone(before, {}, inner.terminator)
        for old, new in local.items():
            rw.replace(old, new, lambda use, branch=branch: branch.contains(use.op.region))
        local.update(zip(cond.results, branch.outputs, strict=True))
        for op in list(branch.ops):
            if not op.is_terminator:
                rw.move(op, inner.terminator)
        rw.clone(after, local, inner.terminator)
        outputs = [local.get(v, v) for v in remat.body.outputs]
        regions.append(_recomputed(inner, outputs, remat, rw))
    selector = outside.get(cond.selector, cond.selector)
    made = rw.new_cond(selector, regions, like=cond, before=remat)
    for old, new in zip(remat.results, made.results, strict=True):
        rw.replace(old, new)
    rw.erase(remat)


def _recomputed(inner: Region, outputs: list[Value], like: Remat, rw: Rewriter) -> Region:
    """A region that yields `outputs`, those made in `inner` from a remat around it."""
    region = rw.new_region()
    inside = list(dict.fromkeys(v for v in outputs if inner.defines(v)))
    rw.set_outputs(inner, inside)
    cse = like.params[
        "prevent_cse"
    ]  # one flag for each operand, which are others now, or one for all
    params = {**like.params, "prevent_cse": any(cse) if isinstance(cse, tuple) else cse}
    made = Remat("remat", (), [v.aval for v in inside], primitive=like.primitive, params=params,
                 regions=[inner], source=like.source)  # fmt: skip
    rw.place(made, region.terminator)
    outside = dict(zip(inside, made.results, strict=True))
    rw.set_outputs(region, [outside.get(v, v) for v in outputs])
    return region
