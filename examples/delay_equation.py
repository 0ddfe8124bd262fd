"""An equation whose rate depends on the past: each step moves the whole history by one row.

Mackey and Glass (1977): ``dx/dt = beta x(t - d) / (1 + x(t - d)^10) - x(t)``, for some cells. The
author keeps the last states in an array, drops the oldest and appends the newest. By hand the array
is a ring, whose oldest row is overwritten.

    cd examples; jaxpr-opt diff delay_equation.py:mean --args-from delay_equation.py:arguments
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

STEPS = 400


def step(now: jax.Array, past: jax.Array, beta: jax.Array) -> jax.Array:
    """The next state of each cell."""
    return now + 0.02 * (beta * past / (1 + past**10) - now)


def mean(start: jax.Array, beta: jax.Array) -> jax.Array:
    """The mean of all cells over all steps; `start` has the states before, the oldest first."""

    def body(past: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        new = step(past[-1], past[0], beta)
        return jnp.concatenate([past[1:], new[None]]), new

    return jnp.mean(lax.scan(body, start, length=STEPS)[1])


def mean_by_hand(start: jax.Array, beta: jax.Array) -> jax.Array:
    """The same with a ring; without the barrier XLA copies the ring before it is overwritten."""

    def body(ring: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        now, past = ring[(t - 1) % len(ring)], ring[t % len(ring)]
        now, past, ring = lax.optimization_barrier((now, past, ring))
        new = step(now, past, beta)
        return ring.at[t % len(ring)].set(new), new

    return jnp.mean(lax.scan(body, start, jnp.arange(STEPS))[1])


def arguments(delay: int = 500) -> tuple[jax.Array, jax.Array]:
    """The states before, of `delay` steps, and a rate for each cell."""
    beta = jnp.linspace(1.5, 2.5, 8)
    return 0.5 + 0.1 * jnp.sin(jnp.arange(float(delay))[:, None] / 9 + beta), beta
