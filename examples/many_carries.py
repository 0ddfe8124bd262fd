"""A loop that carries many scalars by name, and its gradient (jax#40150).

A graph of nodes, each with a belief and a precision, in a dictionary: readable, but every scalar is
an operation of its own in every step. By hand the nodes are one array.

    cd examples; jaxpr-opt diff many_carries.py:gradient --args-from many_carries.py:arguments
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

Node = dict[str, jax.Array]


def filtered(rates: jax.Array, observations: jax.Array) -> jax.Array:
    """The squared surprise of a chain of nodes, one for each rate, about what is observed."""
    names = [f"node{i}" for i in range(rates.size)]

    def step(nodes: dict[str, Node], observed: jax.Array) -> tuple[dict[str, Node], jax.Array]:
        new_nodes, below, surprise = {}, observed, jnp.zeros(())
        for i, name in enumerate(names):
            node = nodes[name]
            error = below - node["belief"]
            surprise += error**2
            precision = 0.9 * node["precision"] + 0.1 * jnp.exp(-(error**2))
            belief = node["belief"] + rates[i] * precision * jnp.tanh(error)
            new_nodes[name] = {"belief": belief, "precision": precision}
            below = node["belief"]
        return new_nodes, surprise

    init = {name: {"belief": jnp.zeros(()), "precision": jnp.ones(())} for name in names}
    return jnp.mean(lax.scan(step, init, observations)[1])


def filtered_by_hand(rates: jax.Array, observations: jax.Array) -> jax.Array:
    """All nodes at once."""

    def step(nodes: Node, observed: jax.Array) -> tuple[Node, jax.Array]:
        belief = nodes["belief"]
        error = jnp.concatenate([observed[None], belief[:-1]]) - belief
        precision = 0.9 * nodes["precision"] + 0.1 * jnp.exp(-(error**2))
        belief = belief + rates * precision * jnp.tanh(error)
        return {"belief": belief, "precision": precision}, jnp.sum(error**2)

    init = {"belief": jnp.zeros_like(rates), "precision": jnp.ones_like(rates)}
    return jnp.mean(lax.scan(step, init, observations)[1])


def gradient(rates: jax.Array, observations: jax.Array) -> jax.Array:
    """The gradient with respect to the rates."""
    return jax.grad(filtered)(rates, observations)


def arguments(nodes: int = 8, steps: int = 256) -> tuple[jax.Array, jax.Array]:
    """What `gradient` is called with."""
    return jnp.linspace(0.1, 0.5, nodes), jnp.sin(jnp.arange(steps) * 0.1)
