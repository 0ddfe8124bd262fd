"""One update of proximal policy optimisation, of nothing but JAX."""

import functools

import jax
import jax.numpy as jnp


def rollout(weights, key):
    def step(state, key):
        logits = state @ weights
        action = jax.random.categorical(key, logits)
        state = jnp.tanh(state + action - 0.5)
        return state, (state, action, jax.nn.log_softmax(logits)[action], -jnp.sum(state**2))

    return jax.lax.scan(step, jnp.ones(4), jax.random.split(key, 16))[1]


def advantages(rewards):
    def step(later, reward):
        later = reward + 0.99 * later
        return later, later

    return jax.lax.scan(step, 0.0, rewards, reverse=True)[1]


def objective(weights, states, actions, old, gains):
    new = jnp.take_along_axis(jax.nn.log_softmax(states @ weights), actions[:, None], 1)[:, 0]
    ratio = jnp.exp(new - old)
    return -jnp.mean(jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains))


class Agent:
    @functools.partial(jax.jit, static_argnums=0)
    def update(self, weights, key):
        states, actions, old, rewards = rollout(weights, key)
        gradient = jax.grad(objective)(weights, states, actions, old, advantages(rewards))
        return weights - 0.1 * gradient


print("updated", Agent().update(jnp.zeros((4, 2)), jax.random.key(0)).shape)
