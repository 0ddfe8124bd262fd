"""A ragged batch of RNNs: each row stops at its own length.

One row is a scan of `cond(t < length, step, identity)`; `vmap` makes the batch. Under `vmap` the
condition becomes a select on a batched predicate, and the gradient stores, for every step and every
row, the operands of the step: weights included.

    cd examples; jaxpr-opt diff ragged_rnn.py:gradient --args-from ragged_rnn.py:arguments
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, jax.Array]


def cell(params: Params, hidden: jax.Array, x: jax.Array) -> jax.Array:
    """One step of a tanh RNN, for a row or for a batch of rows."""
    return jnp.tanh(hidden @ params["recur"] + x @ params["input"] + params["bias"])


def last_hidden(params: Params, xs: jax.Array, length: jax.Array) -> jax.Array:
    """The hidden state of one row, `xs` of shape (time, features), after `length` steps."""

    def step(hidden: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        t, x = inputs
        return lax.cond(t < length, lambda h: cell(params, h, x), lambda h: h, hidden), None

    init = jnp.zeros_like(params["bias"])
    return lax.scan(step, init, (jnp.arange(xs.shape[0]), xs))[0]


def loss(params: Params, xs: jax.Array, lengths: jax.Array) -> jax.Array:
    """Mean square of the last hidden states; `xs` has shape (batch, time, features)."""
    hidden = jax.vmap(last_hidden, in_axes=(None, 0, 0))(params, xs, lengths)
    return jnp.mean(hidden**2)


def loss_by_hand(params: Params, xs: jax.Array, lengths: jax.Array, longest: int) -> jax.Array:
    """The same, by an author who batches by hand and knows the longest row at compile time."""

    def step(hidden: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        t, x = inputs
        return jnp.where((t < lengths)[:, None], cell(params, hidden, x), hidden), None

    init = jnp.zeros((xs.shape[0], params["bias"].size))
    times = jnp.arange(longest), jnp.swapaxes(xs[:, :longest], 0, 1)
    return jnp.mean(lax.scan(step, init, times)[0] ** 2)


def gradient(params: Params, xs: jax.Array, lengths: jax.Array) -> Params:
    """The gradient with respect to the weights."""
    return jax.grad(loss)(params, xs, lengths)


def arguments(
    batch: int = 32, time: int = 64, longest: int = 8, features: int = 16, width: int = 128
) -> tuple[Any, ...]:
    """What `gradient` is called with: rows of `time` slots, at most `longest` of them in use."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "recur": jax.random.normal(keys[0], (width, width)) / width**0.5,
        "input": jax.random.normal(keys[1], (features, width)) / features**0.5,
        "bias": jnp.zeros(width),
    }
    xs = jax.random.normal(keys[2], (batch, time, features))
    lengths = jax.random.randint(keys[3], (batch,), 1, longest + 1).at[0].set(longest)
    return params, xs, lengths
