"""Memory budgets of gradients of loops, beside `jax.checkpoint` by hand.

By hand: without it, around each step, with the policy that keeps products, around segments in one
to two more levels of loops, and that with each step, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from rich.console import Console

from bench import budgets
from bench.budgets import BUDGETS
from bench.harness import Program, optimizer
from bench.memory_unrolled import block, normal
from bench.sweep import Options, sweep

Step = Callable[[Any, Any, Any], Any]
"""`(weights, state, row) -> state`."""


class Loop(NamedTuple):
    """A program whose gradient is taken: steps of one kind from a start."""

    step: Step
    weights: Any
    start: Any
    length: int
    rows: Any = None
    """Arrays of which each step reads a row, for which gradients are taken, too."""


class ByHand(NamedTuple):
    """How somebody has written the loop."""

    levels: int = 1
    each: bool = False
    """Whether each step is under `jax.checkpoint`."""
    policy: Any = None


BY_HAND = {
    "by hand, none": ByHand(),
    "by hand, products": ByHand(1, True, jax.checkpoint_policies.dots_saveable),
    "by hand, each step": ByHand(1, True),
    "by hand, two levels": ByHand(2),
    "by hand, two levels and each step": ByHand(2, True),
    "by hand, three levels": ByHand(3),
    "by hand, three levels and each step": ByHand(3, True),
}


def programs(quick: bool) -> list[Program]:
    """Each loop by hand, then within each budget."""
    return [each for name, loop in _loops(100 if quick else 1000) for each in _of(name, loop)]


def _of(group: str, loop: Loop) -> Iterator[Program]:
    arguments = (loop.weights, loop.rows), loop.start
    for name, how in BY_HAND.items():
        make = functools.partial(jax.grad, functools.partial(_loss, loop, how))
        yield Program(name=name, make=make, arguments=arguments, group=group)
    plain = functools.partial(_loss, loop, ByHand())
    for budget in (None, *BUDGETS):
        within = functools.partial(_within, plain, budget)
        yield Program(name=f"jaxpr-opt, {budget}", make=within, arguments=arguments, group=group)


def _within(loss: Callable[..., Any], budget: str | float | None) -> Callable[..., Any]:
    made: Callable[..., Any] = optimizer()(jax.grad(loss), memory=budget)
    return made


def _loss(loop: Loop, how: ByHand, given: Any, start: Any) -> jax.Array:
    weights, rows = given
    state = _run(functools.partial(loop.step, weights), start, rows, loop.length, how)
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(state)), jnp.zeros(()))


def _run(step: Callable[[Any, Any], Any], state: Any, rows: Any, length: int, how: ByHand) -> Any:
    """So many steps, in as many levels of loops as somebody has written."""
    if how.levels == 1:
        one = jax.checkpoint(step, policy=how.policy) if how.each else step
        return lax.scan(lambda s, row: (one(s, row), None), state, rows, length)[0]
    count = _divisor(length, length ** (1 / how.levels))
    inner = how._replace(levels=how.levels - 1)

    @jax.checkpoint
    def segment(state: Any, rows: Any) -> Any:
        return _run(step, state, rows, length // count, inner)

    parts = jax.tree.map(lambda x: x.reshape(count, length // count, *x.shape[1:]), rows)
    return lax.scan(lambda s, part: (segment(s, part), None), state, parts, count)[0]


def _divisor(count: int, near: float) -> int:
    divisors = [each for each in range(1, count + 1) if count % each == 0]
    return min(divisors, key=lambda each: abs(math.log(each / near)))


# -- the programs ---------------------------------------------------------------------------------


def _loops(length: int) -> Iterator[tuple[str, Loop]]:
    zeros, few = jnp.zeros((16, 64)), length // 50 + 4
    yield "LSTM", Loop(_lstm, normal((64, 256)) / 8, (zeros + 0.1, zeros), length)
    grid = normal((128, 128))
    yield "wave equation", Loop(_wave, jnp.full((128, 128), 0.5), (grid, 0 * grid), length)
    bodies = normal((64, 3))
    yield "n-body", Loop(_bodies, jnp.ones(64), (bodies, 0 * bodies), length)
    layers = normal((64, 64)) / 8, normal((64, 64)) / 8
    yield "neural ODE", Loop(_runge_kutta, layers, normal((64, 64)), length // 10)
    yield "fitted simulation", Loop(_lorenz, normal((3, 256)), normal((3, 256)), 10 * length)
    shapes = (128, 384), (128, 512), (512, 128)
    blocks = tuple(normal((few, *shape)) / 18 for shape in shapes)
    yield "transformer in a scan", Loop(_layer, (), normal((4, 128, 128)), few, blocks)
    keys, sums = normal((few, 2, 8, 64, 32)), jnp.zeros((8, 512, 1))
    none = jnp.zeros((8, 512, 32)), sums - 1e9, sums
    yield "blockwise attention", Loop(_attend, normal((8, 512, 32)), none, few, keys)
    table, tokens = normal((64, 4096)), normal((few, 64, 64))
    yield "chunked cross-entropy", Loop(_chunk, table, jnp.zeros(()), few, tokens)
    task = normal((64, 64)) / 8, normal((64, 64)) / 8
    yield "MAML", Loop(_adapt, jax.tree.map(jnp.zeros_like, task), task, few)


def _lstm(weights: jax.Array, state: Any, _: None) -> Any:
    h, c = state
    i, f, g, o = jnp.split(h @ weights, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _wave(speed: jax.Array, state: Any, _: None) -> Any:
    u, v = state
    around = sum(jnp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1))
    v = v + 0.1 * speed**2 * (around - 4 * u) - 0.01 * jnp.sin(u)
    return u + 0.1 * v, v


def _bodies(mass: jax.Array, state: Any, _: None) -> Any:
    place, speed = state
    apart = place[:, None] - place
    force = -apart * (mass / ((apart**2).sum(-1) + 0.1) ** 1.5)[..., None]
    speed = speed + 0.01 * force.sum(1)
    return place + 0.01 * speed, speed


def _runge_kutta(layers: Any, y: jax.Array, _: None) -> jax.Array:
    def slope(y: jax.Array) -> jax.Array:
        return jnp.tanh(y @ layers[0]) @ layers[1]

    first = slope(y)
    second = slope(y + 0.05 * first)
    third = slope(y + 0.05 * second)
    return y + 0.1 / 6 * (first + 2 * second + 2 * third + slope(y + 0.1 * third))


def _lorenz(weights: jax.Array, state: jax.Array, _: None) -> jax.Array:
    (x, y, z), (a, b, c) = state, jnp.tanh(weights)
    change = a * (y - x), x * (b - jnp.tanh(z)) - y, jnp.tanh(x * y) - c * z
    return state + 0.001 * jnp.stack(change)


def _layer(_: Any, x: jax.Array, weights: Any) -> jax.Array:
    return block(weights, x)


def _attend(queries: jax.Array, state: Any, keys_and_values: jax.Array) -> Any:
    """Attention to some more keys, of the softmax so far: its sum of values, maximum and sum."""
    (total, most, count), (keys, values) = state, keys_and_values
    scores = jnp.einsum("hqd,hkd->hqk", queries, keys) / 5.7
    now = jnp.maximum(most, scores.max(-1, keepdims=True))
    weights, before = jnp.exp(scores - now), jnp.exp(most - now)
    total = total * before + jnp.einsum("hqk,hkd->hqd", weights, values)
    return total, now, count * before + weights.sum(-1, keepdims=True)


def _chunk(table: jax.Array, total: jax.Array, tokens: jax.Array) -> jax.Array:
    """The loss of some tokens, each of which is to be followed by that of its own number."""
    logits = jnp.tanh(tokens @ table / 8) * 30
    return total + (jax.nn.logsumexp(logits, -1) - jnp.diagonal(logits)).sum()


def _adapt(rates: Any, weights: Any, _: None) -> Any:
    """A step of gradient descent, each weight at a rate of its own."""

    def loss(weights: Any) -> jax.Array:
        x = jnp.linspace(-1, 1, 256 * 64).reshape(256, 64)
        return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - jnp.sin(x)) ** 2)

    down = jax.grad(loss)(weights)
    return jax.tree.map(lambda w, g, rate: w - jnp.exp(rate) * g, weights, down, rates)


def run(options: Options, console: Console) -> None:
    """Measure and show."""
    rows = sweep("memory", programs(options.quick), options, console)
    console.print(budgets.table(rows))
