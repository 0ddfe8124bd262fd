"""A neural ODE of diffrax, whose solver is jitted by the library."""

import diffrax
import jax
import jax.numpy as jnp


def field(t, y, weights):
    return jnp.tanh(weights @ y)


weights = jax.random.normal(jax.random.key(0), (3, 3))
term, solver = diffrax.ODETerm(field), diffrax.Tsit5()
solution = diffrax.diffeqsolve(term, solver, 0.0, 1.0, 0.1, jnp.ones(3), args=weights)
print("solved", solution.ys.shape)
