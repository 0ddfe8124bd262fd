"""What an op reads: another value, another number, or the same one changed on its way."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fuzz.mutations.places import alike, constant, is_plain, ops, visible
from jaxpr_opt.ir.graph import Constant, Graph, Value
from jaxpr_opt.ir.rewriter import Rewriter


def rewire(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Make an op read another value of the same type."""
    for op in ops(graph, rng):
        places = [(i, v) for i, v in enumerate(op.operands) if is_plain(v)]
        rng.shuffle(places)
        for index, value in places:
            if others := alike(value, op):
                rw.set_operand(op, index, rng.choice(others))
                return True
    return False


def renumber(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Make an op read a constant, or another constant."""
    for op in ops(graph, rng):
        plain = [i for i, v in enumerate(op.operands) if is_plain(v) and not _weak(v)]
        known = [i for i in plain if isinstance(op.operands[i], Constant)]
        if plain and (known or rng.random() < 0.3):
            index = rng.choice(known or plain)
            rw.set_operand(op, index, constant(op.operands[index], rw, rng, op))
            return True
    return False


def _weak(value: Value) -> bool:
    return bool(getattr(value.aval, "weak_type", False))


def shift(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Move an integer by a little, or reflect, wrap or clamp it."""
    by = rng.choice((1, -1, 1, -1, 2, 4, -4, 100))
    kinds = [
        lambda i: i + np.asarray(by).astype(i.dtype),
        lambda i: np.asarray(3).astype(i.dtype) - i,
        lambda i: lax.rem(i, np.asarray(2).astype(i.dtype)),
        lambda i: lax.min(i, np.asarray(1).astype(i.dtype)),
        lambda i: i * np.asarray(2).astype(i.dtype),
        lambda i: lax.convert_element_type(lax.convert_element_type(i, np.int8), i.dtype),
    ]
    fun = rng.choice([kinds[0], kinds[0], *kinds])
    return _through(graph, rw, rng, fun, lambda v: jnp.issubdtype(v.dtype, jnp.integer))


def compute(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Compute with a float on its way."""
    kinds: list[Callable[[Any], Any]] = [
        lax.neg, lambda x: x + 1, lambda x: x * 0.5, lambda x: x * 0, jnp.sin, lax.stop_gradient,
        lambda x: x[::-1] if x.ndim else x, lax.optimization_barrier,
        lambda x: x.astype(jnp.bfloat16).astype(x.dtype), lambda x: x / x,
        lambda x: jnp.where(x < 0.3, x, 0), lambda x: lax.sort(x) if x.ndim else x,
    ]  # fmt: skip
    return _through(
        graph, rw, rng, rng.choice(kinds), lambda v: jnp.issubdtype(v.dtype, np.floating)
    )


def communicate(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Exchange a float with other devices on its way."""
    kinds: list[Callable[[Any], Any]] = [
        lambda x: lax.psum(x, "i"), lambda x: lax.pmax(x, "i"), lambda x: lax.pmin(x, "i"),
        lambda x: lax.psum(x, "i") * 0.5, lambda x: lax.ppermute(x, "i", [(0, 1), (1, 0)]),
        lambda x: lax.all_gather(x, "i")[0], lambda x: x + lax.axis_index("i").astype(x.dtype),
    ]  # fmt: skip
    return _through(
        graph, rw, rng, rng.choice(kinds), lambda v: jnp.issubdtype(v.dtype, np.floating)
    )


def negate(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Negate a bool on its way."""
    return _through(graph, rw, rng, lax.bitwise_not, lambda v: v.dtype == np.bool_)


def _through(
    graph: Graph, rw: Rewriter, rng: random.Random, fun: Any, fits: Callable[[Value], bool]
) -> bool:
    """Put a function between a value and one that reads it."""
    for op in ops(graph, rng):
        places = [i for i, v in enumerate(op.operands) if is_plain(v) and fits(v)]
        if places:
            index = rng.choice(places)
            value = op.operands[index]
            new = rw.typed(fun, value.aval, value, before=op)
            if new.aval == value.aval:
                rw.set_operand(op, index, new)
                return True
    return False


def combine(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Mix another value of the same type into one: by a sum, or a select."""
    for op in ops(graph, rng):
        places = [i for i, v in enumerate(op.operands) if is_plain(v)]
        rng.shuffle(places)
        for index in places:
            value = op.operands[index]
            others = alike(value, op)
            bools = [v for v in visible(op) if v.dtype == np.bool_ and v.shape == ()]
            if not others:
                continue
            other = rng.choice(others)
            if bools and rng.random() < 0.6:
                p = rng.choice(bools)
                new = rw.typed(lax.select, value.aval, p, value, other, before=op)
            elif value.dtype != np.bool_:
                new = rw.typed(lax.add, value.aval, value, other, before=op)
            else:
                new = rw.typed(lax.bitwise_and, value.aval, value, other, before=op)
            if new.aval == value.aval:
                rw.set_operand(op, index, new)
                return True
    return False
