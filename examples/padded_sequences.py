"""A batch of sequences that are padded, with a mask of floats, as pipelines of data give it.

Plain JAX computes all steps, forward and back, up to the longest sequence that there might be. By
hand, the loop ends with the longest one that there is: its length must be known to the compiler.

    cd examples
    jaxpr-opt diff padded_sequences.py:gradient --args-from padded_sequences.py:arguments
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

LONGEST = 16
"""Steps of the longest sequence of the batch."""


def last_states(weights: jax.Array, rows: jax.Array, mask: jax.Array) -> jax.Array:
    """A padded step keeps the state: ``m * new + (1 - m) * old``."""

    def step(h: jax.Array, each: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        row, m = each
        new = jnp.tanh(row + h @ weights)
        return m[:, None] * new + (1 - m[:, None]) * h, None

    begin = jnp.zeros((rows.shape[1], weights.shape[0]))
    return jnp.sum(lax.scan(step, begin, (rows, mask))[0] ** 2)


def last_states_by_hand(weights: jax.Array, rows: jax.Array, mask: jax.Array) -> jax.Array:
    """No step is only padding."""
    return last_states(weights, rows[:LONGEST], mask[:LONGEST])


def losses(weights: jax.Array, rows: jax.Array, mask: jax.Array) -> jax.Array:
    """The loss of a padded step does not count: ``total + m * loss``."""

    def step(
        c: tuple[jax.Array, jax.Array], each: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        (h, total), (row, m) = c, each
        h = jnp.tanh(row + h @ weights)
        return (h, total + jnp.sum(m * jnp.mean((h - row) ** 2, axis=1))), None

    begin = jnp.zeros((rows.shape[1], weights.shape[0])), jnp.float32(0)
    return lax.scan(step, begin, (rows, mask))[0][1] / jnp.sum(mask)


def losses_by_hand(weights: jax.Array, rows: jax.Array, mask: jax.Array) -> jax.Array:
    """No step is only padding."""
    return losses(weights, rows[:LONGEST], mask[:LONGEST])


def gradient(weights: jax.Array, rows: jax.Array, mask: jax.Array) -> jax.Array:
    """The gradient with respect to the weights."""
    return jax.grad(last_states)(weights, rows, mask)


def arguments(
    size: int = 256, batch: int = 8, width: int = 32
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Weights, rows of so many time slots, and a mask, both with the time first."""
    keys = jax.random.split(jax.random.key(0), 3)
    weights = jax.random.normal(keys[0], (width, width)) / width**0.5
    rows = jax.random.normal(keys[1], (size, batch, width))
    lengths = jax.random.randint(keys[2], (batch,), LONGEST // 4, LONGEST).at[0].set(LONGEST)
    return weights, rows, (jnp.arange(size)[:, None] < lengths).astype(jnp.float32)
