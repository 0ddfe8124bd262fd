"""An equation of fractional order: each step sums up the whole history, by weights that fade.

Caputo's derivative of order ``a``, by the L1 scheme: a state that was `k` steps ago weighs
``(k + 1)**(1 - a) - k**(1 - a)``, as in models of viscoelastic matter. The author computes the
weights of all states in each step, though they are those of the step before, moved on by one place.
By hand they are computed once, last to first, and each step reads a window of them.

    cd examples; jaxpr-opt diff fractional_order.py:error --args-from fractional_order.py:arguments
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def fading(ago: jax.Array, order: jax.Array) -> jax.Array:
    """The weights of changes that are so many steps ago; 0 for those that are to come."""
    ago = jnp.maximum(ago, 0.0)
    return (ago + 1.0) ** (1.0 - order) - ago ** (1.0 - order)


def step(push: jax.Array, history: jax.Array) -> jax.Array:
    """How much the state changes."""
    return 0.1 * jnp.tanh(push - 0.1 * history)


def error(order: jax.Array, pushes: jax.Array, seen: jax.Array) -> jax.Array:
    """How far the changes are from those that were seen."""
    times = jnp.arange(len(pushes))

    def body(changes: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
        weights = jnp.where(times < t, fading(t - times, order), 0.0)
        return changes.at[t].set(step(pushes[t], weights @ changes)), None

    changes, _ = lax.scan(body, jnp.zeros_like(pushes), times)
    return jnp.mean((changes - seen) ** 2)


def error_by_hand(order: jax.Array, pushes: jax.Array, seen: jax.Array) -> jax.Array:
    """The same with weights that are computed once; what is to come has none."""
    n = len(pushes)
    weights = jnp.concatenate([fading(jnp.arange(n, 0, -1), order), jnp.zeros(n)])

    def body(changes: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
        history = lax.dynamic_slice(weights, (n - t,), (n,)) @ changes
        return changes.at[t].set(step(pushes[t], history)), None

    changes, _ = lax.scan(body, jnp.zeros_like(pushes), jnp.arange(n))
    return jnp.mean((changes - seen) ** 2)


def arguments(steps: int = 500) -> tuple[jax.Array, jax.Array, jax.Array]:
    """An order, and what pushes and is seen in each step."""
    times = jnp.arange(float(steps))
    return jnp.float32(0.6), jnp.sin(times / 9), 0.1 * jnp.cos(times / 7)
