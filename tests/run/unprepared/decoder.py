"""Decoding with a cache of keys and values, which is donated from token to token."""

import functools

import jax
import jax.numpy as jnp

LENGTH, WIDTH = 64, 16


@functools.partial(jax.jit, donate_argnames="cache")
def decode(weights, token, position, *, cache):
    query, key, value = jnp.split(token @ weights, 3)
    keys, values = cache["keys"].at[position].set(key), cache["values"].at[position].set(value)
    scores = jnp.where(jnp.arange(LENGTH) <= position, keys @ query, -jnp.inf)
    return jax.nn.softmax(scores) @ values, {"keys": keys, "values": values}


weights = jax.random.normal(jax.random.key(0), (WIDTH, 3 * WIDTH))
cache = {"keys": jnp.zeros((LENGTH, WIDTH)), "values": jnp.zeros((LENGTH, WIDTH))}
token = jnp.ones(WIDTH)
for position in range(4):
    token, cache = decode(weights, token, position, cache=cache)
print("decoded", token.shape)
