"""A loop that reads a table in some of its steps only.

The transpose of `cond` in plain JAX makes a table of zeros in every other step, too, and adds it.
By hand the gradient adds up the rows that were read after the loop.

    cd examples; jaxpr-opt diff rare_lookups.py:gradient --args-from rare_lookups.py:arguments
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def events(table: jax.Array, ids: jax.Array, rare: jax.Array) -> jax.Array:
    """A state that decays, but for the steps of rare events."""

    def step(state: jax.Array, event: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        i, happens = event
        decayed = 0.9 * state
        return lax.cond(happens, lambda: jnp.tanh(decayed + table[i]), lambda: decayed), None

    return jnp.sum(lax.scan(step, jnp.zeros(table.shape[1]), (ids, rare))[0])


@jax.custom_vjp
def events_by_hand(table: jax.Array, ids: jax.Array, rare: jax.Array) -> jax.Array:
    """The gradient makes a row in each step."""
    return _forward(table, ids, rare)[0]


def _forward(
    table: jax.Array, ids: jax.Array, rare: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    def step(state: jax.Array, event: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        i, happens = event
        decayed = 0.9 * state
        state = lax.cond(happens, lambda: jnp.tanh(decayed + table[i]), lambda: decayed)
        return state, state

    last, states = lax.scan(step, jnp.zeros(table.shape[1]), (ids, rare))
    return jnp.sum(last), (table, ids, rare, states)


def _backward(residuals: tuple[jax.Array, ...], ct: jax.Array) -> tuple[jax.Array, None, None]:
    table, ids, rare, states = residuals

    def step(
        ct_state: jax.Array, event: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        happens, state = event
        inner = ct_state * (1 - state**2)
        zeros = jnp.zeros_like(inner)
        return 0.9 * jnp.where(happens, inner, ct_state), jnp.where(happens, inner, zeros)

    init = jnp.full(table.shape[1], ct)
    rows = lax.scan(step, init, (rare, states), reverse=True)[1]
    return jnp.zeros_like(table).at[ids].add(rows), None, None


events_by_hand.defvjp(_forward, _backward)


def gradient(table: jax.Array, ids: jax.Array, rare: jax.Array) -> jax.Array:
    """The gradient with respect to the table."""
    return jax.grad(events)(table, ids, rare)


def arguments(size: int = 256, width: int = 16) -> tuple[jax.Array, jax.Array, jax.Array]:
    """As many steps as rows of the table; an eighth of them are events."""
    keys = jax.random.split(jax.random.key(0), 3)
    table = jax.random.normal(keys[0], (size, width))
    ids = jax.random.randint(keys[1], (size,), 0, size)
    return table, ids, jax.random.bernoulli(keys[2], 0.125, (size,))
