"""Merge a loop of loops into one, as planned by `jaxpr_opt.analysis.steps.loop_nests`."""

from __future__ import annotations

from functools import partial

from jax import lax

from jaxpr_opt.analysis.steps.loop_nests import LoopNest, OneLoop
from jaxpr_opt.ir.graph import Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter


def merge(nest: LoopNest, plan: OneLoop, rw: Rewriter) -> None:
    """Replace the outer loop by one that takes the steps of both."""
    outer, inner = nest.outer, nest.inner
    n, m = outer.length, inner.length
    rows = {s.param: s.operand for s in outer.streams}
    read = [rows[s.operand] for s in inner.streams]
    streams = [rw.reshape(x, (n * m, *x.shape[2:]), before=outer) for x in read]
    body = inner.body
    if plan.joint:
        streams.append(_joint(nest, rw))
    stacked, avals = _flat_outputs(nest, plan, rw)
    if plan.joint:
        gate = rw.new_value(plan.inner_skip.predicate.aval, "outer")
        rw.add_param(body, gate)
        inner_predicate = plan.inner_skip.predicate
        both = _gate(inner_predicate, gate, rw)
        stacked = [both if value is inner_predicate else value for value in stacked]
    count = len(inner.carries)
    rw.set_outputs(body, [*body.outputs[:count], *stacked])
    flat = rw.new_scan(
        rw.detach_region(inner),
        [c.init for c in plan.carries],
        streams,
        avals,
        length=n * m,
        reverse=outer.reverse,
        like=outer,
        before=outer,
    )
    for carry, result in zip(plan.carries, flat.results, strict=False):
        rw.replace(carry.result, result)
    last = m - 1 if outer.reverse else 0
    split = [rw.reshape(x, (n, m, *x.shape[1:]), before=outer) for x in flat.results[count:]]
    for stack, both, source in zip(outer.stacks, split, plan.sources, strict=True):
        of_outer = partial(lax.index_in_dim, index=last, axis=1, keepdims=False)
        made = both if isinstance(source, Stack) else rw.insert(of_outer, both, before=outer)
        rw.replace(stack.result, made)
    rw.erase(outer)


def _flat_outputs(nest: LoopNest, plan: OneLoop, rw: Rewriter) -> tuple[list[Value], list[object]]:
    """The values that the merged loop stacks in every step for each outer stack, and the types of
    its results.
    """
    outer, inner = nest.outer, nest.inner
    end, total = inner.body.terminator, outer.length * inner.length
    renamed = {o.param: c.param for o, c in zip(plan.carries, inner.carries, strict=True)}
    values, avals = [], []
    for stack, source in zip(outer.stacks, plan.sources, strict=True):
        if isinstance(source, Stack):
            values.append(source.value)
        else:
            rw.clone(source, renamed, end)
            values.append(renamed.get(stack.value, stack.value))
        avals.append(rw.stacked_aval(values[-1], total))
    return values, avals


def _joint(nest: LoopNest, rw: Rewriter) -> Value:
    """The outer predicate of every inner step, for masks that do not imply it."""
    outer, skip, n, m = nest.outer, nest.skip, nest.outer.length, nest.inner.length
    rows = {s.param: s.operand for s in outer.streams}
    masks = rw.vectorize(skip.slice, skip.predicate, rows, length=n, before=outer)
    return rw.insert(
        lambda p: lax.reshape(lax.broadcast_in_dim(p, (n, m), (0,)), (n * m,)), masks, before=outer
    )


def _gate(predicate: Value, gate: Value, rw: Rewriter) -> Value:
    """``gate and predicate``, which everything that reads the inner predicate now reads."""
    home = predicate.region
    assert home is not None
    after = predicate.op.next if predicate.op is not None else home.first
    assert after is not None
    both = rw.insert(lax.bitwise_and, gate, predicate, before=after)
    rw.replace(predicate, both, where=lambda use: use.op is not both.op)
    return both
