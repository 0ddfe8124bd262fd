"""The paths of the particles of a filter: each step chooses ancestors, and rewrites the past.

The particles of a hidden Markov model are moved, weighed by an observation, and drawn again. The
author keeps the path of each particle in an array, whose columns each step rearranges. By hand only
each step's particles and ancestors are stored, and the paths are traced back after the loop.

    cd examples; jaxpr-opt diff particle_paths.py:paths --args-from particle_paths.py:arguments
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

PARTICLES = 64


def step(particles: jax.Array, key: jax.Array, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The particles moved, and the ancestors that are drawn for the next ones."""
    moving, drawing = jax.random.split(key)
    particles = 0.9 * particles + jax.random.normal(moving, particles.shape)
    return particles, jax.random.categorical(
        drawing, -((particles - seen) ** 2), shape=(PARTICLES,)
    )


def paths(observed: jax.Array, keys: jax.Array) -> jax.Array:
    """The paths of all particles, one in each column."""
    count = observed.size

    def body(t: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        particles, kept = state
        particles, ancestors = step(particles, keys[t], observed[t])
        kept = kept.at[t].set(particles)
        return particles[ancestors], kept[:, ancestors]

    return lax.fori_loop(0, count, body, (jnp.zeros(PARTICLES), jnp.zeros((count, PARTICLES))))[1]


def paths_by_hand(observed: jax.Array, keys: jax.Array) -> jax.Array:
    """The same, traced back."""

    def forth(
        particles: jax.Array, given: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        moved, ancestors = step(particles, *given)
        return moved[ancestors], (moved, ancestors)

    def back(at: jax.Array, given: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        moved, ancestors = given
        at = ancestors[at]
        return at, moved[at]

    _, stored = lax.scan(forth, jnp.zeros(PARTICLES), (keys, observed))
    return lax.scan(back, jnp.arange(PARTICLES), stored, reverse=True)[1]


def arguments(steps: int = 256) -> tuple[jax.Array, jax.Array]:
    """What was observed, and a key for each step."""
    keys = jax.random.split(jax.random.key(0), steps)
    return jnp.sin(jnp.arange(float(steps)) / 8), keys
