"""Loops that choose rows, one a step, of a matrix of all pairs that was computed before; and pairs.

Plain JAX makes the matrix, of which few rows, or elements, are read, and its gradient one of zeros
but for these. By hand each step computes its row, and each pair its element.

    cd examples; jaxpr-opt diff chosen_rows.py:farthest --args-from chosen_rows.py:arguments
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

CHOSEN, RANK = 64, 16

Row = Callable[[jax.Array], jax.Array]
"""A row of the matrix, by its number."""
State = tuple[jax.Array, jax.Array]


def farthest(points: jax.Array) -> jax.Array:
    """How far points are from those that were chosen as far from each other, as in PointNet++."""
    squares = jnp.sum(points**2, 1)
    distances = squares[:, None] + squares - 2 * points @ points.T
    return _chosen(lambda i: distances[i], len(points))


def farthest_by_hand(points: jax.Array) -> jax.Array:
    """A step computes the distances from one point."""
    squares = jnp.sum(points**2, 1)
    return _chosen(lambda i: squares[i] + squares - 2 * points @ points[i], len(points))


def _chosen(row: Row, count: int) -> jax.Array:
    def step(state: State, _: None) -> tuple[State, None]:
        nearest, i = state
        nearest = jnp.minimum(nearest, row(i))
        return (nearest, jnp.argmax(nearest)), None

    init = jnp.full(count, jnp.inf), jnp.zeros((), int)
    return jnp.sum(lax.scan(step, init, None, length=CHOSEN)[0][0])


def factored(points: jax.Array) -> jax.Array:
    """What a pivoted Cholesky factor leaves of the variance of a Gaussian process."""
    squares = jnp.sum(points**2, 1)
    kernel = jnp.exp(points @ points.T - 0.5 * (squares[:, None] + squares))
    return _left(lambda i: kernel[i], len(points))


def factored_by_hand(points: jax.Array) -> jax.Array:
    """A step computes the covariances with one point."""
    squares = jnp.sum(points**2, 1)
    row = lambda i: jnp.exp(points @ points[i] - 0.5 * (squares[i] + squares))  # noqa: E731
    return _left(row, len(points))


def _left(row: Row, count: int) -> jax.Array:
    def step(state: State, t: jax.Array) -> tuple[State, None]:
        factor, left = state
        i = jnp.argmax(left)
        column = (row(i) - factor @ factor[i]) / jnp.sqrt(left[i])
        return (factor.at[:, t].set(column), jnp.maximum(left - column**2, 0.1)), None

    init = jnp.zeros((count, RANK)), jnp.ones(count)
    return jnp.sum(lax.scan(step, init, jnp.arange(RANK))[0][1])


def rated(users: jax.Array, items: jax.Array, pairs: jax.Array) -> jax.Array:
    """How well some users like some items."""
    return jnp.sum(jax.nn.sigmoid((users @ items.T)[pairs[:, 0], pairs[:, 1]]))


def rated_by_hand(users: jax.Array, items: jax.Array, pairs: jax.Array) -> jax.Array:
    """Each pair by itself."""
    return jnp.sum(jax.nn.sigmoid(jnp.sum(users[pairs[:, 0]] * items[pairs[:, 1]], 1)))


def ratings(size: int = 1024, width: int = 32) -> tuple[jax.Array, jax.Array, jax.Array]:
    """As many users as items, and two ratings of each user."""
    keys = jax.random.split(jax.random.key(0), 3)
    users, items = (jax.random.normal(key, (size, width)) for key in keys[:2])
    return users, items, jax.random.randint(keys[2], (2 * size, 2), 0, size)


def arguments(size: int = 1024, width: int = 8) -> tuple[jax.Array]:
    """Points."""
    return (0.5 * jax.random.normal(jax.random.key(0), (size, width)),)
