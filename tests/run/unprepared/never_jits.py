"""A script that lets JAX run op by op."""

import jax.numpy as jnp

print("sum", float(jnp.sum(jnp.sin(jnp.ones(3)))) > 0)
