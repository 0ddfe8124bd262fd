"""A script that fails after it has compiled something, with words of its own to say about that."""

import atexit

import jax
import jax.numpy as jnp


@jax.jit
def doubled(x):
    return 2 * x


atexit.register(print, "at exit")
doubled(jnp.ones(3))
raise ValueError("out of data")
