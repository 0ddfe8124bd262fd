"""One site of a grid at a time, with its neighbours.

An Ising model whose spins are flipped one by one: neighbours by `jnp.roll`, as everyone writes
them, and the flip where it is accepted. And bodies whose positions and velocities are columns of
one array, of which a collision changes one. XLA reads no more than a row of what is rolled or cut,
but copies the array before it writes; the gradient adds rolled arrays of zeros. By hand each step
reads and writes elements.

    cd examples; jaxpr-opt diff spin_flips.py:flipped --args-from spin_flips.py:grid
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

WIDTH = 16
COUPLING = 0.4


def _sum_of(energies: jax.Array, spins: jax.Array) -> jax.Array:
    return jnp.sum(energies) + jnp.sum(spins)


def flipped(spins: jax.Array, sites: jax.Array, draws: jax.Array) -> jax.Array:
    """The energies at each site that was visited, and the magnetisation."""

    def step(spins: jax.Array, visit: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (i, j), draw = visit
        around = [jnp.roll(spins, by, axis) for by in (1, -1) for axis in (0, 1)]
        energy = COUPLING * spins[i, j] * sum(each[i, j] for each in around)
        accepted = spins.at[i, j].multiply(-1)
        return jnp.where(draw < jnp.exp(-2 * energy), accepted, spins), energy

    spins, energies = lax.scan(step, spins, (sites, draws))
    return _sum_of(energies, spins)


def flipped_by_hand(spins: jax.Array, sites: jax.Array, draws: jax.Array) -> jax.Array:
    """Four elements are read, and one is written."""
    rows, columns = spins.shape

    def step(spins: jax.Array, visit: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (i, j), draw = visit
        up, down = spins[(i - 1) % rows, j], spins[(i + 1) % rows, j]
        left, right = spins[i, (j - 1) % columns], spins[i, (j + 1) % columns]
        old = spins[i, j]
        energy = COUPLING * old * (up + left + down + right)
        new = jnp.where(draw < jnp.exp(-2 * energy), -old, old)
        return spins.at[i, j].set(new), energy

    spins, energies = lax.scan(step, spins, (sites, draws))
    return _sum_of(energies, spins)


def struck(bodies: jax.Array, which: jax.Array, pushes: jax.Array) -> jax.Array:
    """Bodies are pushed one by one: columns are positions and velocities."""

    def step(bodies: jax.Array, push: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, by = push
        position, velocity = bodies[:, :3], bodies[:, 3:]
        faster = velocity[i] + by
        moved = position.at[i].add(0.1 * faster)
        bodies = jnp.concatenate([moved, velocity.at[i].set(faster)], axis=1)
        return bodies, jnp.sum(faster**2)

    bodies, energies = lax.scan(step, bodies, (which, pushes))
    return _sum_of(energies, bodies)


def struck_by_hand(bodies: jax.Array, which: jax.Array, pushes: jax.Array) -> jax.Array:
    """A row is read and written."""

    def step(bodies: jax.Array, push: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, by = push
        row = bodies[i]
        faster = row[3:] + by
        row = jnp.concatenate([row[:3] + 0.1 * faster, faster])
        return bodies.at[i].set(row), jnp.sum(faster**2)

    bodies, energies = lax.scan(step, bodies, (which, pushes))
    return _sum_of(energies, bodies)


def grid(size: int = 64) -> tuple[jax.Array, jax.Array, jax.Array]:
    """So many rows of spins, and as many visits."""
    keys = jax.random.split(jax.random.key(0), 3)
    spins = jnp.sign(jax.random.normal(keys[0], (size, WIDTH)))
    sites = jnp.stack([
        jax.random.randint(key, (size,), 0, n)
        for key, n in zip(jax.random.split(keys[1]), spins.shape, strict=True)
    ], axis=1)  # fmt: skip
    return spins, sites, jax.random.uniform(keys[2], (size,))


def pushed(size: int = 64) -> tuple[jax.Array, jax.Array, jax.Array]:
    """So many bodies, and as many pushes."""
    keys = jax.random.split(jax.random.key(0), 3)
    bodies = jax.random.normal(keys[0], (size, 6))
    return (
        bodies,
        jax.random.randint(keys[1], (size,), 0, size),
        jax.random.normal(keys[2], (size, 3)),
    )
