"""A language model that attends to what it has read, as somebody writes it first, and its training.

Nothing in here is prepared: docs/tutorial.md makes it fast and small.

    jaxpr-opt run examples/tutorial.py 128
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
from jax import lax

WIDTH, WORDS, BATCH = 32, 64, 8
Params = dict[str, jax.Array]


def states(params: Params, inputs: jax.Array) -> jax.Array:
    """The state after each word; each step writes its key and its value, and reads all so far."""
    length = inputs.shape[0]

    def step(carry: tuple[jax.Array, ...], i: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
        x, keys, values, xs = carry
        x = x + inputs[i]
        keys = keys.at[i].set(x @ params["key"])
        values = values.at[i].set(x @ params["value"])
        scores = jnp.where(jnp.arange(length) <= i, keys @ (x @ params["query"]), -1e9)
        x = jnp.tanh(x + jax.nn.softmax(scores) @ values)
        return (x, keys, values, xs.at[i].set(x)), None

    empty = jnp.zeros((length, WIDTH))
    start: tuple[jax.Array, ...] = (jnp.zeros(WIDTH), empty, empty, empty)
    return lax.scan(step, start, jnp.arange(length))[0][3]


def loss(params: Params, words: jax.Array) -> jax.Array:
    """How surprised the model is by each next word."""
    inputs = params["embed"][words[:, :-1]]
    logits = jax.vmap(states, (None, 0))(params, inputs) @ params["out"]
    predicted = jnp.take_along_axis(jax.nn.log_softmax(logits), words[:, 1:, None], -1)
    return -predicted.mean()


def train_step(params: Params, words: jax.Array) -> tuple[Params, jax.Array]:
    """The parameters after a step of gradient descent, and the loss before it."""
    value, gradient = jax.value_and_grad(loss)(params, words)
    return jax.tree.map(lambda p, g: p - g, params, gradient), value


def arguments(length: int = 128) -> tuple[Params, jax.Array]:
    """Parameters, and a batch of sentences."""
    shapes = {"embed": (WORDS, WIDTH), "out": (WIDTH, WORDS)}
    shapes |= dict.fromkeys(("query", "key", "value"), (WIDTH, WIDTH))
    keys = jax.random.split(jax.random.key(0), len(shapes))
    params = {
        name: 0.1 * jax.random.normal(key, shape)
        for (name, shape), key in zip(shapes.items(), keys, strict=True)
    }
    return params, jax.random.randint(jax.random.key(1), (BATCH, length + 1), 0, WORDS)


def main() -> None:
    """Train for a few steps, on sentences as long as the command line says."""
    params, words = arguments(int(sys.argv[1]))
    step = jax.jit(train_step)
    for _ in range(5):
        params, value = step(params, words)
        print(f"loss {value:.3f}")


if __name__ == "__main__":
    main()
