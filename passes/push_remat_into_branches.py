"""Recompute, in the transpose of a checkpointed cond, only the branch that was taken.

Before::

    g = remat {
      i = lt k n
      h = cond i { f x ct } else { ct }
      yield h
    }

After::

    i = lt k n
    g = cond i {
      remat { f x ct }
    } else {
      ct
    }

Sound when

1. the remat holds one cond, and otherwise only cheap ops, few enough to repeat them in each branch;
2. nothing in it has effects or communicates. Where XLA may insert collectives beside the cond, all
   devices take the same branch;
3. the selector is defined outside, or made by cheap ops, which are repeated outside;
4. JAX has differentiated the remat, or nothing differentiates it any more. JAX transposes a cond
   into a second cond, which takes its masks from the first. In one branch XLA would see a mask next
   to its product, turn both into a select, and drop the NaN of ``0 * NaN``.

Cost: none at run time. The rewrite exposes the loop in the branch, and the branch that does
nothing, to other passes.
Source: https://github.com/jax-ml/jax/issues/8239 with `jax.checkpoint` around the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.bridge.parameters import is_in_transpose, with_one_cse_flag
from jaxpr_opt.cost import limits
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Cond, Op, Region, Remat, Value
from jaxpr_opt.ir.nesting import phase_of
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import can_move, is_cheap, may_depend_on


@dataclass(frozen=True, slots=True, eq=False)
class RematOfCond(Match):
    """A remat around a cond."""

    op: Remat
    remat: Remat
    cond: Cond


@dataclass(frozen=True)
class PushRematIntoBranches(Pass[RematOfCond]):
    """Turn a remat of a cond into a cond of remats."""

    name: ClassVar[str] = "push-remat-into-branches"
    anchors: ClassVar[tuple[type[Op], ...]] = (Remat,)

    def find(self, op: Remat) -> Iterator[RematOfCond]:
        conds = [each for each in op.body.ops if isinstance(each, Cond)]
        if len(conds) == 1:  # (1)
            yield RematOfCond(op, "only the branch taken is recomputed", op, conds[0])

    def refuse(self, match: RematOfCond) -> str | None:
        return _why_outside(match.remat, match.cond)

    def rewrite(self, match: RematOfCond, rw: Rewriter) -> None:
        _push(match.remat, match.cond, rw)


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
    if dear:  # (1)
        return f"{dear[0].name} is recomputed whichever branch is taken"
    if len(before) + len(after) > limits.OPS_BESIDE_A_COND:
        return f"{len(before) + len(after)} ops beside the cond would be repeated in each branch"
    if not can_move(remat):  # (2)
        return "a branch has effects or communicates"
    if not may_depend_on(cond.selector, (*before, *after), remat):  # (2)
        return "XLA may insert collectives beside the cond, so every device must run it"
    if not is_in_transpose(remat) and phase_of(remat) != "final":  # (4)
        return "JAX has not differentiated it yet: XLA would see masks next to their products"
    return None


def _push(remat: Remat, cond: Cond, rw: Rewriter) -> None:
    before, after = _beside(remat, cond)
    outside: dict[Value, Value] = {}
    made_inside = backward_slice([cond.selector], lambda v: not remat.body.defines(v))
    rw.clone(made_inside, outside, remat)  # (3)
    regions = []
    for branch in cond.branches:
        inner = rw.new_region()
        local = rw.clone(before, {}, inner.terminator)
        for old, new in local.items():
            rw.replace(old, new, branch.reads)
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
    params = with_one_cse_flag(like)  # its operands are others now
    made = Remat("remat", (), [v.aval for v in inside], primitive=like.primitive, params=params,
                 regions=[inner], source=like.source)  # fmt: skip
    rw.place(made, region.terminator)
    outside = dict(zip(inside, made.results, strict=True))
    rw.set_outputs(region, [outside.get(v, v) for v in outputs])
    return region
