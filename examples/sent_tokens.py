"""Tokens that are sent to experts, and back, by one-hot arrays.

Each expert has room for so many tokens. An array says which token has which place of which expert,
and a product with it moves the tokens there: it multiplies zeros for every token and every place.
By hand tokens are added to their places, and read from them.

    cd examples; jaxpr-opt diff sent_tokens.py:gradient --args-from sent_tokens.py:arguments
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

Weights = tuple[jax.Array, jax.Array, jax.Array]

EXPERTS = 8
CHOSEN = 2
"""How many experts a token is sent to."""


def mixture(weights: Weights, tokens: jax.Array) -> jax.Array:
    """The outputs of the experts of each token, as most libraries for such models sum them up."""
    shares, places = _routes(weights, tokens)
    sent = jax.nn.one_hot(places, _room(tokens))
    combined = jnp.einsum("tk,tkec->tec", shares, sent)
    moved = jnp.einsum("tec,td->ecd", sent.sum(1), tokens)
    return jnp.einsum("tec,ecd->td", combined, _experts(weights, moved))


def mixture_by_hand(weights: Weights, tokens: jax.Array) -> jax.Array:
    """Tokens are added to their places, and read from them."""
    shares, places = _routes(weights, tokens)
    room = _room(tokens)
    expert, place = jnp.argmax(places, -1), jnp.max(places, -1)
    at = jnp.where(place < room, expert * room + place, EXPERTS * room)
    zeros = jnp.zeros((EXPERTS * room, tokens.shape[1]))
    moved = zeros.at[at].add(tokens[:, None], mode="drop")
    made = _experts(weights, moved.reshape(EXPERTS, room, -1)).reshape(moved.shape)
    return jnp.einsum("tk,tkd->td", shares, made.at[at].get(mode="fill", fill_value=0))


def _routes(weights: Weights, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The share of each expert that a token is sent to; and its place there, -1 at others."""
    shares, chosen = jax.lax.top_k(jax.nn.softmax(tokens @ weights[0]), CHOSEN)
    is_sent = jax.nn.one_hot(chosen, EXPERTS, dtype=jnp.int32)
    first = is_sent.transpose(1, 0, 2).reshape(-1, EXPERTS)
    order = jnp.cumsum(first, 0).reshape(CHOSEN, -1, EXPERTS).transpose(1, 0, 2)
    return shares, order * is_sent - 1


def _room(tokens: jax.Array) -> int:
    return tokens.shape[0] * CHOSEN * 5 // (EXPERTS * 4)


def _experts(weights: Weights, moved: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", moved, weights[1]))
    return jnp.einsum("ecf,efd->ecd", hidden, weights[2])


def gradient(weights: Weights, tokens: jax.Array) -> Weights:
    """The gradient with respect to the weights."""
    return jax.grad(loss)(weights, tokens)


def loss(weights: Weights, tokens: jax.Array) -> jax.Array:
    """The sum of squares of outputs."""
    return jnp.sum(mixture(weights, tokens) ** 2)


def loss_by_hand(weights: Weights, tokens: jax.Array) -> jax.Array:
    """The same."""
    return jnp.sum(mixture_by_hand(weights, tokens) ** 2)


def arguments(size: int = 64, width: int = 64) -> tuple[Weights, jax.Array]:
    """So many tokens of 64 numbers, and experts of one hidden layer."""
    keys = jax.random.split(jax.random.key(0), 4)
    weights = (
        jax.random.normal(keys[0], (width, EXPERTS)),
        0.1 * jax.random.normal(keys[1], (EXPERTS, width, width)),
        0.1 * jax.random.normal(keys[2], (EXPERTS, width, width)),
    )
    return weights, jax.random.normal(keys[3], (size, width))
