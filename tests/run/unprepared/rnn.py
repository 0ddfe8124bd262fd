"""A recurrent network of Equinox that fills an array, an element a step."""

import equinox as eqx
import jax
import jax.numpy as jnp


class RNN(eqx.Module):
    cell: eqx.nn.GRUCell
    activation: callable

    def __call__(self, xs):
        def step(i, carry):
            state, ys = carry
            state = self.cell(xs[i], state)
            return state, ys.at[i].set(self.activation(state))

        start = jnp.zeros(8), jnp.zeros((len(xs), 8))
        return jax.lax.fori_loop(0, len(xs), step, start)[1]


@eqx.filter_jit
def train_step(model, xs):
    def loss(model):
        return jnp.mean(jax.vmap(model)(xs) ** 2)

    value, gradient = eqx.filter_value_and_grad(loss)(model)
    return value, eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, gradient))


model = RNN(eqx.nn.GRUCell(4, 8, key=jax.random.key(0)), jnp.tanh)
for _ in range(2):
    value, model = train_step(model, jax.random.normal(jax.random.key(1), (8, 32, 4)))
print("finite" if jnp.isfinite(value) else "not finite")
