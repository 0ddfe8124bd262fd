"""Random gradients of loops, at random prices of memory: the same bits."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import passes
from jaxpr_opt.cost.model import cost_model, using
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.verify import verify
from jaxpr_opt.testing import assert_same_bits, evaluate_exactly, run_alone

UNARY = (jnp.sin, jnp.cos, jnp.tanh, lambda x: x * 0.9, lambda x: jnp.exp(-x * x))


def random_step(rng, depth):
    """A step `(carry, x) -> (carry, y)` of two arrays, a counter and a key."""
    ops = [rng.choice(UNARY) for _ in range(rng.randint(1, 4))]
    adds, draws, chooses = (rng.random() < p for p in (0.5, 0.3, 0.3))
    inner = random_loop(rng, depth - 1) if depth and rng.random() < 0.5 else None
    emits = rng.choice(["nothing", "first", "sum", "next"])

    def step(carry, x, w):
        (a, b), count, key = carry
        for op in ops:
            a = op(a * w + (x if adds else 0.1))
        if inner is not None:
            a = inner((a, b), w)[0][0]
        if draws:
            key, this = jax.random.split(key)
            a = a + 0.1 * jax.random.normal(this, a.shape)
        if chooses:
            b = lax.cond(count % 2 == 0, lambda a, b: jnp.sin(a * b), lambda a, b: a + b, a, b)
        y = {"nothing": None, "first": carry[0][0], "sum": a + b, "next": a}[emits]
        return ((b, a), count + 1, key), y

    return step


def random_loop(rng, depth):
    """A loop `((a, b), w) -> ((a, b), ys)`."""
    step, length = random_step(rng, depth), rng.choice([1, 2, 3, 4, 7, 12, 13, 24, 31])
    reverse = rng.random() < 0.3
    rows = jnp.linspace(-1.0, 1.0, 3 * length, dtype=jnp.float32).reshape(length, 3)

    def loop(pair, w):
        xs = rows * pair[1]
        start = pair, 0, jax.random.key(length)
        (pair, _, _), ys = lax.scan(
            lambda carry, x: step(carry, x, w), start, xs, length=length, reverse=reverse
        )
        return pair, ys

    return loop


def random_program(rng):
    """A gradient, perhaps of a batch or of a gradient, of one loop or two in a row."""
    loops = [random_loop(rng, 1) for _ in range(rng.randint(1, 2))]

    def loss(a, w):
        pair, total = (a, a * 0.5), 0.0
        for loop in loops:
            pair, ys = loop(pair, w)
            total = total + sum(jnp.sum(y * y) for y in jax.tree.leaves((pair, ys)))
        return total

    gradient = jax.value_and_grad(loss, (0, 1))
    how = rng.choice(["gradient", "gradient", "batch", "second"])
    if how == "batch":
        return jax.vmap(gradient, (0, None)), (jnp.ones((2, 3)) * 0.3, jnp.ones(3) * 0.7)
    arguments = jnp.linspace(0.1, 0.5, 3), jnp.linspace(0.9, 0.7, 3)
    if how == "second":
        return lambda a, w: jax.jvp(jax.grad(loss), (a, w), (w, a)), arguments
    return gradient, arguments


def check(seed):
    """Whether segments were made; raises if anything is not as before."""
    rng = random.Random(seed)
    program, arguments = random_program(rng)
    jaxpr = jax.make_jaxpr(program)(*arguments)
    graph = import_jaxpr(jaxpr, "final")
    run_alone(passes.RESIDUALS, graph)
    before = export(graph)
    with using(cost_model().at(rng.choice([1e-9, 1e-7, 1.0]))):
        journal = run_alone(passes.MEMORY, graph)
    verify(graph, types=True)
    after = export(graph)
    assert_same_bits(evaluate_exactly(before, *arguments), evaluate_exactly(after, *arguments))
    return bool(journal.record("replay-segments", cleanup=False).rewrites)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(2), range(2, 4)])
def test_random_loops(seeds):
    with np.errstate(all="ignore"):
        made = [check(seed) for seed in seeds]
    assert any(made)
