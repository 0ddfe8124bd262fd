"""Loops that choose by the number of their step: a warm-up, and a correction every eighth step.

The gradient in plain JAX keeps what either case leaves in all steps, and computes both. By hand,
each phase is a loop of its own.

    cd examples; jaxpr-opt diff phases.py:warm_up_gradient --args-from phases.py:arguments
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

EVERY = 8
"""Steps from one correction to the next."""


def _explore(weights: jax.Array, state: jax.Array, rate: jax.Array) -> jax.Array:
    return state + rate * jnp.sin(state @ weights) * jnp.exp(-(state**2))


def _settle(weights: jax.Array, state: jax.Array, rate: jax.Array) -> jax.Array:
    return state + rate * jnp.tanh(state @ weights)


def warm_up(weights: jax.Array, state: jax.Array, rates: jax.Array) -> jax.Array:
    """A quarter of the steps explores."""
    steps = len(rates)

    def step(state: jax.Array, each: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        t, rate = each
        return lax.cond(t < steps // 4, _explore, _settle, weights, state, rate), None

    return jnp.sum(lax.scan(step, state, (jnp.arange(steps), rates))[0])


def warm_up_by_hand(weights: jax.Array, state: jax.Array, rates: jax.Array) -> jax.Array:
    """A loop for each phase."""
    first, others = rates[: len(rates) // 4], rates[len(rates) // 4 :]
    state = lax.scan(lambda x, rate: (_explore(weights, x, rate), None), state, first)[0]
    state = lax.scan(lambda x, rate: (_settle(weights, x, rate), None), state, others)[0]
    return jnp.sum(state)


def corrected(weights: jax.Array, state: jax.Array, rates: jax.Array) -> jax.Array:
    """Every eighth step corrects what the others did."""

    def step(state: jax.Array, each: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        t, rate = each
        state = _settle(weights, state, rate)
        return jnp.where(t % EVERY == EVERY - 1, _explore(weights, state, rate), state), None

    return jnp.sum(lax.scan(step, state, (jnp.arange(len(rates)), rates))[0])


def corrected_by_hand(weights: jax.Array, state: jax.Array, rates: jax.Array) -> jax.Array:
    """A loop of rounds."""

    def one_round(state: jax.Array, rates: jax.Array) -> tuple[jax.Array, None]:
        *_, last = rates
        state = lax.scan(lambda x, rate: (_settle(weights, x, rate), None), state, rates)[0]
        return _explore(weights, state, last), None

    return jnp.sum(lax.scan(one_round, state, rates.reshape(-1, EVERY))[0])


def warm_up_gradient(weights: jax.Array, state: jax.Array, rates: jax.Array) -> jax.Array:
    """The gradient with respect to the weights."""
    return jax.grad(warm_up)(weights, state, rates)


def arguments(size: int = 256, width: int = 16) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Weights, a batch of states, and the rate of each step."""
    keys = jax.random.split(jax.random.key(0), 2)
    weights = jax.random.normal(keys[0], (width, width)) / width**0.5
    state = jax.random.normal(keys[1], (8, width))
    return weights, state, jnp.linspace(0.1, 0.01, size)
