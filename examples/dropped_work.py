"""Steps that compute more than they take.

`jnp.where` and `jnp.select` compute all of their cases. Plain JAX stores the residuals of all of
them, too, and multiplies them by zeros in the gradient. By hand only what is taken is computed.

    cd examples; jaxpr-opt diff dropped_work.py:gradient --args-from dropped_work.py:arguments
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

Weights = tuple[jax.Array, jax.Array]

MARKS = 16
"""How many steps have a loss."""
EXPERTS = 4


def spotted(weights: Weights, frames: jax.Array, marked: jax.Array) -> jax.Array:
    """A running mean of frames; a network looks at it in the few steps that are marked."""

    def step(
        state: tuple[jax.Array, jax.Array], frame: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        mean, total = state
        values, is_marked = frame
        mean = 0.9 * mean + values
        return (mean, jnp.where(is_marked, total + jnp.sum(_network(weights, mean)), total)), None

    init = jnp.zeros(frames.shape[1:]), jnp.zeros(())
    return lax.scan(step, init, (frames, marked))[0][1]


def spotted_by_hand(weights: Weights, frames: jax.Array, marked: jax.Array) -> jax.Array:
    """The network looks at the means of the marked steps after the loop."""

    def step(mean: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        mean = 0.9 * mean + values
        return mean, mean

    means = lax.scan(step, jnp.zeros(frames.shape[1:]), frames)[1]
    (at,) = jnp.nonzero(marked, size=MARKS)
    return jnp.sum(jax.vmap(_network, (None, 0))(weights, means[at]))


def routed(experts: Weights, frames: jax.Array, chosen: jax.Array) -> jax.Array:
    """A state that one of several networks changes in each step."""

    def step(state: jax.Array, frame: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        values, which = frame
        state = 0.9 * state + values
        new = [_network((experts[0][k], experts[1][k]), state) for k in range(EXPERTS)]
        return jnp.select([which == k for k in range(EXPERTS)], new, state), None

    return jnp.sum(lax.scan(step, jnp.zeros(frames.shape[1:]), (frames, chosen))[0])


def routed_by_hand(experts: Weights, frames: jax.Array, chosen: jax.Array) -> jax.Array:
    """Each step reads the weights of one network."""

    def step(state: jax.Array, frame: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        values, which = frame
        return _network((experts[0][which], experts[1][which]), 0.9 * state + values), None

    return jnp.sum(lax.scan(step, jnp.zeros(frames.shape[1:]), (frames, chosen))[0])


def _network(weights: Weights, values: jax.Array) -> jax.Array:
    return jnp.tanh(values @ weights[0]) @ weights[1]


def gradient(weights: Weights, frames: jax.Array, marked: jax.Array) -> Weights:
    """The gradient with respect to the weights."""
    return jax.grad(spotted)(weights, frames, marked)


def arguments(
    size: int = 64, batch: int = 16, width: int = 64
) -> tuple[Weights, jax.Array, jax.Array]:
    """So many steps, of which 16 are marked."""
    keys = jax.random.split(jax.random.key(0), 4)
    at = jax.random.choice(keys[3], size, (MARKS,), replace=False)
    marked = jnp.zeros(size, bool).at[at].set(True)
    return _weights(keys, width), jax.random.normal(keys[2], (size, batch, width)), marked


def routes(
    size: int = 64, batch: int = 16, width: int = 64
) -> tuple[Weights, jax.Array, jax.Array]:
    """So many steps, each with one of four networks."""
    keys = jax.random.split(jax.random.key(0), 4)
    chosen = jax.random.randint(keys[3], (size,), 0, EXPERTS)
    frames = jax.random.normal(keys[2], (size, batch, width))
    return _weights(keys, width, EXPERTS), frames, chosen


def _weights(keys: jax.Array, width: int, *networks: int) -> Weights:
    first, second = (*networks, width, 4 * width), (*networks, 4 * width, width)
    return (
        0.1 * jax.random.normal(keys[0], first),
        0.1 * jax.random.normal(keys[1], second),
    )
