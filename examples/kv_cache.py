"""Decoding with a cache of keys and values, forward and differentiated through.

Every step writes one row of the cache and reads all rows so far. For the gradient plain JAX stores
the whole cache once per step. By hand the final cache is enough: rows that a step had not written
yet were masked in it, so they count for nothing in its gradient either.

    cd examples; jaxpr-opt diff kv_cache.py:gradient --args-from kv_cache.py:arguments
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, jax.Array]


def attend(query: jax.Array, keys: jax.Array, values: jax.Array, t: jax.Array) -> jax.Array:
    """What the rows up to `t` answer to the query."""
    scores = jnp.where(jnp.arange(keys.shape[0]) <= t, keys @ query, -jnp.inf)
    return jax.nn.softmax(scores) @ values


def project(params: Params, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Query, key and value of a token."""
    return x @ params["query"], x @ params["key"], x @ params["value"]


def decode(params: Params, tokens: jax.Array) -> jax.Array:
    """The states after each token; a state is fed back into the next step."""
    length, width = tokens.shape

    def step(carry: tuple[Any, ...], t: jax.Array) -> tuple[tuple[Any, ...], jax.Array]:
        x, keys, values = carry
        query, key, value = project(params, x + tokens[t])
        keys = lax.dynamic_update_slice(keys, key[None], (t, 0))
        values = lax.dynamic_update_slice(values, value[None], (t, 0))
        x = jnp.tanh(x + attend(query, keys, values, t))
        return (x, keys, values), x

    cache = jnp.zeros((length, width))
    return lax.scan(step, (jnp.zeros(width), cache, cache), jnp.arange(length))[1]


def loss(params: Params, tokens: jax.Array) -> jax.Array:
    """Mean square of the states."""
    return jnp.mean(decode(params, tokens) ** 2)


@jax.custom_vjp
def loss_by_hand(params: Params, tokens: jax.Array) -> jax.Array:
    """The same; the gradient keeps the final cache and the states, and attends again."""
    return loss(params, tokens)


def _forward(params: Params, tokens: jax.Array) -> tuple[jax.Array, tuple[Any, ...]]:
    states = decode(params, tokens)
    return jnp.mean(states**2), (params, tokens, states)


def _backward(residuals: tuple[Any, ...], ct: jax.Array) -> tuple[Params, jax.Array]:
    params, tokens, states = residuals
    before = jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])
    (queries, keys, values), transpose_project = jax.vjp(project, params, before + tokens)

    def step(carry: tuple[Any, ...], inputs: tuple[Any, ...]) -> tuple[Any, Any]:
        ct_x, ct_keys, ct_values = carry
        t, query, x, token, state, ct_state = inputs
        ct_sum = (ct_x + ct_state) * (1 - state**2)
        _, transpose = jax.vjp(lambda q, k, v: attend(q, k, v, t), query, keys, values)
        ct_query, more_keys, more_values = transpose(ct_sum)
        ct_keys, ct_values = ct_keys + more_keys, ct_values + more_values
        cts = ct_query, ct_keys[t], ct_values[t]
        _, transpose = jax.vjp(lambda x: project(params, x), x + token)
        return (ct_sum + transpose(cts)[0], ct_keys, ct_values), cts

    init = jnp.zeros_like(states[0]), jnp.zeros_like(keys), jnp.zeros_like(values)
    ct_states = 2 * ct * states / states.size
    inputs = jnp.arange(len(tokens)), queries, before, tokens, states, ct_states
    _, cts = lax.scan(step, init, inputs, reverse=True)
    return transpose_project(cts)


loss_by_hand.defvjp(_forward, _backward)


def gradient(params: Params, tokens: jax.Array) -> Params:
    """The gradient with respect to the weights."""
    return jax.grad(loss)(params, tokens)


def arguments(length: int = 64, width: int = 16) -> tuple[Params, jax.Array]:
    """What `gradient` is called with."""
    *keys, last = jax.random.split(jax.random.key(0), 4)
    params = {
        name: jax.random.normal(key, (width, width)) / width**0.5
        for name, key in zip(("query", "key", "value"), keys, strict=True)
    }
    return params, jax.random.normal(last, (length, width))
