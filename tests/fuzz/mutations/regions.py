"""More of loops and conds: further results, carried values, conds around ops."""

from __future__ import annotations

import random

import numpy as np

from fuzz.mutations.places import alike, is_plain, may_change, ops, visible, zeros
from jaxpr_opt.ir.graph import Carry, Cond, Graph, Outcome, Scan, Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter


def expose(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Return a value from the middle of the program: through the loops and conds around it."""
    found = [v for op in ops(graph, rng) for v in op.results if is_plain(v)]
    params = [p for op in graph.walk() for r in op.regions for p in r.params if is_plain(p)]
    candidates = found[:3] + rng.sample(params, min(2, len(params)))
    if not candidates:
        return False
    value: Value | None = rng.choice(candidates)
    while value is not None and value.region is not graph.body:
        value = _outwards(value, rw)
    if value is None:
        return False
    rw.set_outputs(graph.body, [*graph.outputs, value])
    return True


def _outwards(value: Value, rw: Rewriter) -> Value | None:
    """A value of a region as a result of the op around it."""
    owner = value.region.owner if value.region is not None else None
    if isinstance(owner, Scan):
        stack = Stack(value, rw.new_value(rw.stacked_aval(value, owner.length)))
        rw.set_scan(owner, stacks=[*owner.stacks, stack])
        return stack.result
    if isinstance(owner, Cond):
        mine = [r for r in owner.branches if r is value.region]
        values = []
        for branch in owner.branches:
            if branch in mine:
                values.append(value)
            else:
                end = branch.terminator
                values.append(rw.insert(zeros(value), before=end))
        if len({str(v.aval) for v in values}) > 1:
            return None
        result = rw.new_value(value.aval)
        rw.set_cond(owner, [*owner.outcomes, Outcome(result, tuple(values))])
        return result
    return None


def carry(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Carry a value of one step into the next, where another is read."""
    for loop in [op for op in ops(graph, rng) if isinstance(op, Scan)]:
        inside = [op for op in loop.body.ops if may_change(op)]
        rng.shuffle(inside)
        for op in inside:
            for index, old in enumerate(op.operands):
                outer = [v for v in visible(loop) if v.aval == old.aval]
                if not is_plain(old) or not loop.body.defines(old) or not outer:
                    continue
                param, result = rw.new_value(old.aval), rw.new_value(old.aval)
                made = Carry(rng.choice(outer), param, old, result)
                rw.set_scan(loop, carries=[*loop.carries, made])
                rw.set_operand(op, index, param)
                return True
    return False


def under_a_cond(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Compute a value only if some predicate holds, and else take another."""
    for op in ops(graph, rng):
        bools = [v for v in visible(op) if v.dtype == np.bool_ and v.shape == ()]
        if op.regions or len(op.results) != 1 or not bools or op.effects or not is_plain(op.result):
            continue
        others = alike(op.result, op)
        inner, outer = rw.new_region(), rw.new_region()
        cond = rw.new_cond(rng.choice(bools), [outer, inner], like=op, before=op)
        result = rw.new_value(op.result.aval)
        rw.replace(op.result, result)
        rw.move(op, inner.terminator)
        value = op.result
        end = outer.terminator
        if others and rng.random() < 0.7:
            other = rng.choice(others)
        else:
            other = rw.insert(zeros(value), before=end)
        if other.aval != value.aval:
            other = rw.typed(lambda x: x, value.aval, other, before=end)
        rw.set_cond(cond, [Outcome(result, (other, value))])
        return True
    return False
