"""Sums and products of another shape, and sums in another order: `optimize(reassociate=True)`.

By default, rows that are read of all that are computed (a sampler without a cache, a flow that is
inverted, one particle's energy, one coordinate of a gradient); where the user allows it, what each
step of a gradient maps, and rows of a table that may be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from rich.console import Console

from bench.harness import Program, optimizer
from bench.sweep import Options, sweep

Function = Callable[..., Any]
Params = dict[str, jax.Array]


class Family(NamedTuple):
    """A program, its form by hand, and its arguments for a size."""

    name: str
    program: Function
    by_hand: Function
    arguments: Callable[[int], tuple[Any, ...]]
    sizes: tuple[int, ...]


def _normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def energies(positions: jax.Array) -> jax.Array:
    """Particles that move one after the other, by an energy that is computed for all."""
    return _moved(positions, lambda all_, i: _energy(all_[:, None] - all_)[i])


def energies_by_hand(positions: jax.Array) -> jax.Array:
    """The energy of the one that moves."""
    return _moved(positions, lambda all_, i: _energy(all_[i] - all_))


def _energy(between: jax.Array) -> jax.Array:
    return (1 / (jnp.sum(between**2, -1) + 0.1)).sum(-1)


def _moved(positions: jax.Array, energy: Function) -> jax.Array:
    def step(all_: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        return all_.at[i].add(0.01 * energy(all_, i)), None

    return lax.scan(step, positions, jnp.arange(len(positions)))[0]


def descend(x: jax.Array, y: jax.Array) -> jax.Array:
    """Coordinate descent on least squares, one element of the gradient at a time."""
    return _descended(x, lambda w, j: (x.T @ (x @ w - y))[j])


def descend_by_hand(x: jax.Array, y: jax.Array) -> jax.Array:
    """That element only."""
    return _descended(x, lambda w, j: x[:, j] @ (x @ w - y))


def _descended(x: jax.Array, gradient: Function) -> jax.Array:
    def step(w: jax.Array, j: jax.Array) -> tuple[jax.Array, None]:
        return w.at[j].add(-gradient(w, j) / len(x)), None

    return lax.scan(step, jnp.zeros(x.shape[1]), jnp.arange(x.shape[1]))[0]


def invert(first: jax.Array, second: jax.Array, z: jax.Array) -> jax.Array:
    """A masked autoregressive flow, inverted one element at a time."""
    return _inverted(first, z, lambda hidden, i: (hidden @ second)[:, i])


def invert_by_hand(first: jax.Array, second: jax.Array, z: jax.Array) -> jax.Array:
    """One column of the weights at a time."""
    return _inverted(first, z, lambda hidden, i: hidden @ second[:, i])


def _inverted(first: jax.Array, z: jax.Array, shift: Function) -> jax.Array:
    def step(i: jax.Array, x: jax.Array) -> jax.Array:
        return x.at[:, i].set(z[:, i] + shift(jnp.tanh(x @ first), i))

    return lax.fori_loop(0, z.shape[1], step, jnp.zeros_like(z))


def _flow(size: int) -> tuple[jax.Array, ...]:
    hidden = 4 * size
    below = jnp.arange(hidden)[None] % size > jnp.arange(size)[:, None]
    return (
        _normal(0, size, hidden) * below / size,
        _normal(1, hidden, size) / hidden,
        _normal(2, 16, size),
    )


def sample(params: Params, tokens: jax.Array) -> jax.Array:
    """Greedy decoding without a cache: one layer of attention and the head see all positions."""

    def logits(x: jax.Array, t: jax.Array) -> jax.Array:
        past = jnp.tril(jnp.ones((len(x), len(x)), bool))
        return _head(params, x + jax.nn.softmax(jnp.where(past, x @ x.T, -jnp.inf)) @ x)[t]

    return _sampled(params, tokens, logits)


def sample_by_hand(params: Params, tokens: jax.Array) -> jax.Array:
    """They see one position."""

    def logits(x: jax.Array, t: jax.Array) -> jax.Array:
        past = jnp.arange(len(x)) <= t
        return _head(params, x[t] + jax.nn.softmax(jnp.where(past, x @ x[t], -jnp.inf)) @ x)

    return _sampled(params, tokens, logits)


def _head(params: Params, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["up"]) @ params["head"]


def _sampled(params: Params, tokens: jax.Array, logits: Function) -> jax.Array:
    def step(tokens: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
        x = params["embed"][tokens]
        return tokens.at[t + 1].set(jnp.argmax(logits(x, t))), None

    return lax.scan(step, tokens, jnp.arange(len(tokens) - 1))[0]


def _sampler(size: int) -> tuple[Any, ...]:
    shapes = {"embed": (512, 64), "up": (64, 256), "head": (256, 512)}
    params = {name: _normal(i, *s) / 8 for i, (name, s) in enumerate(shapes.items())}
    return params, jnp.zeros(size, jnp.int32)


def attend(table: jax.Array, ids: jax.Array) -> jax.Array:
    """A step reads a row of a softmax of a table."""
    return _attended(lambda: jax.nn.softmax(table), table, ids)


def attend_by_hand(table: jax.Array, ids: jax.Array) -> jax.Array:
    """The softmax is computed before the loop, so that JAX differentiates it once."""
    made = jax.nn.softmax(table)
    return _attended(lambda: made, table, ids)


def _attended(make: Function, table: jax.Array, ids: jax.Array) -> jax.Array:
    def step(c: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        c = jnp.tanh(c + make()[i])
        return c, c.sum()

    return lax.scan(step, jnp.zeros(table.shape[1]), ids)[1].sum()


def _table(rows: int, steps: int, *several: int) -> tuple[jax.Array, jax.Array]:
    ids = jax.random.randint(jax.random.key(1), (steps, *several), 0, rows)
    return _normal(0, rows, 64), ids


def train(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Gradient descent on rows of a table, some of which may be the same."""

    def loss(table: jax.Array, some: jax.Array) -> jax.Array:
        return jnp.mean((table[some].sum(-1) - 1) ** 2)

    def step(table: jax.Array, some: jax.Array) -> tuple[jax.Array, None]:
        return table - 0.01 * jax.grad(loss)(table, some), None

    return lax.scan(step, table, ids)[0]


def train_by_hand(table: jax.Array, ids: jax.Array) -> jax.Array:
    """The gradient of the rows, added to them."""

    def step(table: jax.Array, some: jax.Array) -> tuple[jax.Array, None]:
        errors = table[some].sum(-1, keepdims=True) - 1
        rows = jnp.broadcast_to(2 * errors / len(some), (len(some), table.shape[1]))
        return table.at[some].add(-0.01 * rows), None

    return lax.scan(step, table, ids)[0]


FAMILIES = (
    Family("a sampler without a cache", sample, sample_by_hand, _sampler, (16, 32, 64, 128)),
    Family("a flow, inverted", invert, invert_by_hand, _flow, (16, 32, 64, 128)),
    Family(
        "energies of particles",
        energies,
        energies_by_hand,
        lambda n: (_normal(0, n, 3),),
        (32, 64, 128, 256),
    ),
    Family(
        "coordinate descent",
        descend,
        descend_by_hand,
        lambda n: (_normal(0, 2 * n, n), _normal(1, 2 * n)),
        (32, 64, 128, 256),
    ),
    Family(
        "softmax of a table, gradient",
        jax.grad(attend),
        jax.grad(attend_by_hand),
        lambda n: _table(n, 100),
        (64, 128, 256, 512),
    ),
    Family(
        "a table, trained",
        train,
        train_by_hand,
        lambda n: _table(n, 100, 8),
        (512, 1024, 2048, 4096),
    ),
)


def candidates(family: Family) -> Iterator[tuple[str, Callable[[], Function]]]:
    """The programs to compare: what each is called, and a function that makes it."""
    yield "plain JAX", lambda: family.program
    yield "jaxpr-opt", lambda: optimizer()(family.program)
    yield "jaxpr-opt, reassociate", lambda: optimizer()(family.program, reassociate=True)
    yield "by hand", lambda: family.by_hand


def programs(quick: bool) -> list[Program]:
    """Every candidate of every family at every size."""
    return [
        Program(name=name, make=make, arguments=given, group=family.name, size=size, answer=size)
        for family in FAMILIES
        for size in (family.sizes[::2] if quick else family.sizes)
        for given in [family.arguments(size)]
        for name, make in candidates(family)
    ]


def run(options: Options, console: Console) -> None:
    """Measure, and show."""
    sweep("reassociate", programs(options.quick), options, console, lambda *_: None)
