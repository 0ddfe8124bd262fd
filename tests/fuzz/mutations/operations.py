"""What is computed: another primitive, other operands, another direction."""

from __future__ import annotations

import random

import jax.numpy as jnp
import numpy as np
from jax import lax

from fuzz.mutations.places import is_plain, ops
from jaxpr_opt.ir.graph import Cond, Graph, Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter

GROUPS = [
    [lax.add_p, lax.sub_p, lax.mul_p, lax.max_p, lax.min_p, lax.div_p],
    [lax.lt_p, lax.le_p, lax.gt_p, lax.ge_p, lax.eq_p, lax.ne_p],
    [lax.and_p, lax.or_p, lax.xor_p],
    [lax.neg_p, lax.sin_p, lax.tanh_p, lax.exp_p, lax.log_p, lax.sqrt_p, lax.sign_p, lax.floor_p],
    [lax.reduce_max_p, lax.reduce_min_p],
    [lax.cumsum_p, lax.cumprod_p, lax.cummax_p, lax.cummin_p],
]
"""Primitives that take each other's places."""


def replace_primitive(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Compute something else of the same operands."""
    for op in ops(graph, rng):
        group = next((g for g in GROUPS if op.primitive in g), None)
        if group is None or not is_plain(op.operands[0]) or op.operands[0].dtype == np.bool_:
            continue
        is_float = jnp.issubdtype(op.operands[0].dtype, jnp.inexact)
        if group is GROUPS[3] and not is_float:
            continue
        primitive = rng.choice(group)
        params = {k: v for k, v in op.params.items() if k != "accuracy"}
        if primitive in {lax.sin_p, lax.tanh_p, lax.exp_p, lax.log_p, lax.sqrt_p}:
            params["accuracy"] = None
        made = Op(
            primitive.name, op.operands, [v.aval for v in op.results],
            primitive=primitive, params=params, source=op.source,
        )  # fmt: skip
        rw.place(made, op)
        rw.replace(op.result, made.result)
        rw.erase(op)
        return True
    return False


def swap(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Swap two operands of the same type."""
    for op in ops(graph, rng):
        n = len(op.operands)
        pairs = [
            (i, j) for i in range(n) for j in range(i) if _same(op.operands[i], op.operands[j])
        ]
        if pairs:
            i, j = rng.choice(pairs)
            first, second = op.operands[i], op.operands[j]
            rw.set_operand(op, i, second)
            rw.set_operand(op, j, first)
            return True
    return False


def _same(a: Value, b: Value) -> bool:
    return a is not b and a.aval == b.aval


def duplicate(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Compute a value twice, for two readers."""
    for op in ops(graph, rng):
        shared = [v for v in op.results if len(v.uses) > 1]
        if shared and not op.effects and not op.is_terminator:
            copy = rw.copy(op, {})
            rw.place(copy, op)
            for old, new in zip(op.results, copy.results, strict=True):
                if len(old.uses) > 1:
                    use = rng.choice(list(old.uses))
                    rw.set_operand(use.op, use.position, new)
            return True
    return False


def reverse(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Run a loop the other way."""
    loops = [op for op in ops(graph, rng) if isinstance(op, Scan)]
    for loop in loops[:1]:
        rw.set_scan(loop, reverse=not loop.reverse)
    return bool(loops)


def swap_branches(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Swap the values that two branches of a cond give a result."""
    for op in ops(graph, rng):
        if isinstance(op, Cond) and len(op.branches) == 2:
            predicate = rw.insert(lax.bitwise_not, op.selector, before=op)
            rw.set_operand(op, 0, predicate)
            return True
    return False
