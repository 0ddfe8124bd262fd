"""Trajectories and replay buffers that a batch of rollouts carries, and their gradients.

`jax.vmap(rollout)` is how such programs are written: the buffer is an array of one environment's
observations, updated in place. In the gradient plain JAX handles the whole buffer in every step.

    cd examples; jaxpr-opt diff rollouts.py:gradient --args-from rollouts.py:arguments
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def advance(policy: jax.Array, state: jax.Array) -> jax.Array:
    """One step of the environment under the policy, for a state or a batch of them."""
    return state + 0.1 * jnp.tanh(state @ policy) - 0.01 * state


def trajectories(
    policy: jax.Array, states: jax.Array, lengths: jax.Array, pushes: jax.Array
) -> jax.Array:
    """Mean square of what was recorded; each episode ends after a number of steps of its own."""
    steps = jnp.arange(pushes.size)

    def rollout(state: jax.Array, length: jax.Array) -> jax.Array:
        def step(carry: tuple[Any, Any], t: jax.Array) -> tuple[tuple[Any, Any], None]:
            state, record = carry
            done = t >= length
            new_state = jnp.where(done, state, advance(policy, state + pushes[t]))
            return (new_state, jnp.where(done, record, record.at[t].set(new_state))), None

        init = state, jnp.zeros((pushes.size, state.size))
        return lax.scan(step, init, steps)[0][1]

    return jnp.mean(jax.vmap(rollout)(states, lengths) ** 2)


def trajectories_by_hand(
    policy: jax.Array, states: jax.Array, lengths: jax.Array, pushes: jax.Array
) -> jax.Array:
    """A stack of what a batched step observes."""

    def step(states: jax.Array, inputs: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
        t, push = inputs
        done = (t >= lengths)[:, None]
        states = jnp.where(done, states, advance(policy, states + push))
        return states, jnp.where(done, 0, states)

    return jnp.mean(lax.scan(step, states, (jnp.arange(pushes.size), pushes))[1] ** 2)


def replay(policy: jax.Array, states: jax.Array, picks: jax.Array) -> jax.Array:
    """Each step mixes in a remembered state, and overwrites the oldest one: a ring.

    `picks` has shape (batch, steps); the memory holds half as many states as there are steps.
    """
    capacity = picks.shape[1] // 2

    def rollout(state: jax.Array, picks: jax.Array) -> jax.Array:
        def step(carry: tuple[Any, Any, Any], pick: jax.Array) -> tuple[Any, None]:
            t, state, memory = carry
            state = advance(policy, 0.5 * (state + memory[pick]))
            return (t + 1, state, memory.at[t % capacity].set(state)), None

        init = 0, state, jnp.zeros((capacity, state.size))
        return lax.scan(step, init, picks)[0][2]

    return jnp.mean(jax.vmap(rollout)(states, picks) ** 2)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def replay_by_hand(
    policy: jax.Array, states: jax.Array, picks: jax.Array, keep: bool = False
) -> jax.Array:
    """The gradient needs what a step mixed, not the memory; its own is updated in place. The
    policy's answer it keeps too, or multiplies again.
    """
    return _replay_forward(policy, states, picks, keep)[0]


def _replay_forward(
    policy: jax.Array, states: jax.Array, picks: jax.Array, keep: bool
) -> tuple[jax.Array, tuple[Any, ...]]:
    batch, steps = picks.shape
    rows, capacity = jnp.arange(batch), steps // 2

    def step(carry: tuple[Any, Any], inputs: tuple[Any, Any]) -> tuple[Any, Any]:
        states, memory = carry
        t, pick = inputs
        mixed = 0.5 * (states + memory[pick, rows])
        answer = jnp.tanh(mixed @ policy)
        states = mixed + 0.1 * answer - 0.01 * mixed
        return (states, memory.at[t % capacity].set(states)), (mixed, answer if keep else None)

    init = states, jnp.zeros((capacity, *states.shape))
    (_, memory), kept = lax.scan(step, init, (jnp.arange(steps), picks.T))
    return jnp.mean(memory**2), (policy, picks, memory, kept)


def _replay_backward(
    keep: bool, residuals: tuple[Any, ...], ct: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    policy, picks, memory, kept = residuals
    batch, steps = picks.shape
    rows, capacity = jnp.arange(batch), steps // 2

    def step(carry: tuple[Any, Any, Any], inputs: tuple[Any, ...]) -> tuple[Any, None]:
        ct_policy, ct_states, ct_memory = carry
        t, pick, (mixed, answer) = inputs
        answer = answer if keep else jnp.tanh(mixed @ policy)
        ct_sum = 0.1 * ct_states * (1 - answer**2)
        ct_mixed = 0.99 * ct_states + ct_sum @ policy.T
        # XLA:CPU copies a buffer that is written after it was read: the read comes last.
        ct_memory = ct_memory.at[t % capacity].set(0).at[pick, rows].add(0.5 * ct_mixed)
        ct_states = 0.5 * ct_mixed + ct_memory[(t - 1) % capacity]
        return (ct_policy + mixed.T @ ct_sum, ct_states, ct_memory), None

    ct_memory = 2 * ct * memory / memory.size
    init = jnp.zeros_like(policy), ct_memory[(steps - 1) % capacity], ct_memory
    inputs = jnp.arange(steps), picks.T, kept
    (ct_policy, ct_states, ct_memory), _ = lax.scan(step, init, inputs, reverse=True)
    return ct_policy, ct_states - ct_memory[-1], None


replay_by_hand.defvjp(_replay_forward, _replay_backward)


def gradient(
    policy: jax.Array, states: jax.Array, lengths: jax.Array, pushes: jax.Array
) -> jax.Array:
    """The gradient with respect to the policy."""
    return jax.grad(trajectories)(policy, states, lengths, pushes)


def arguments(steps: int = 64, batch: int = 8, width: int = 8) -> tuple[jax.Array, ...]:
    """What `gradient` is called with; episodes take between a quarter and all of the steps."""
    policy, states, _ = replay_arguments(steps, batch, width)
    lengths = jnp.linspace(steps // 4, steps, batch, dtype=jnp.int32)
    return policy, states, lengths, 0.1 * jax.random.normal(jax.random.key(1), (steps,))


def replay_arguments(steps: int, batch: int = 8, width: int = 8) -> tuple[jax.Array, ...]:
    """What `replay` is called with."""
    keys = jax.random.split(jax.random.key(0), 3)
    policy = jax.random.normal(keys[0], (width, width)) / width**0.5
    states = jax.random.normal(keys[1], (batch, width))
    return policy, states, jax.random.randint(keys[2], (batch, steps), 0, steps // 2)
