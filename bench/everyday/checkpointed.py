"""Loops whose steps are under `jax.checkpoint`, as memory asks for it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from bench.everyday.entry import Entry, below, entry, normal


def settled(weights: Array, x: Array) -> Array:
    """A state that is updated until it rests."""

    @jax.checkpoint
    def step(state: Any, _: None) -> Any:
        x, moved = state
        new = jnp.tanh(x @ weights)
        go = moved > 1e-3
        left = jnp.where(go, jnp.max(jnp.abs(new - x)), moved)
        return (jnp.where(go, new, x), left), None

    return lax.scan(step, (x, jnp.inf), None, length=100)[0][0]


def recalled(table: Array, words: Array, weights: Array) -> Array:
    """A recurrent network that reads a row of a table in each step, and writes one."""

    @jax.checkpoint
    def step(state: Any, t: Array) -> Any:
        h, out = state
        h = jnp.tanh(table[words[t]] + h @ weights)
        return (h, out.at[t].set(h)), None

    start = jnp.zeros(32), jnp.zeros((len(words), 32))
    return lax.scan(step, start, jnp.arange(len(words)))[0][1]


def finished(weights: Array, xs: Array, lengths: Array) -> Array:
    """A gated unit over sequences of several lengths."""

    @jax.checkpoint
    def step(h: Array, given: Any) -> Any:
        t, x = given
        gate = jax.nn.sigmoid(x @ weights[0] + h @ weights[1])
        new = gate * h + (1 - gate) * jnp.tanh(x @ weights[2])
        return jnp.where((t < lengths)[:, None], new, h), None

    start = jnp.zeros((len(lengths), 32))
    return lax.scan(step, start, (jnp.arange(len(xs)), xs))[0]


PROGRAMS: dict[str, Entry] = {
    "settled": entry(settled, 0.1 * normal(64, 64), normal(64)),
    "recalled": entry(recalled, normal(500, 32), below(500, 80), 0.1 * normal(32, 32)),
    "finished": entry(finished, 0.2 * normal(3, 32, 32), normal(60, 8, 32), 4 + below(12, 8)),
}
