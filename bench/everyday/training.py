"""Steps of training with a table of which a batch reads some rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from bench.everyday.entry import Entry, below, entry, forward, normal


def word_vectors(table: Array, centers: Array, contexts: Array) -> Any:
    """Skip-gram by Adagrad: one table, read in two places of a step."""

    def loss(table: Array, i: Array, j: Array) -> Array:
        return jnp.mean(jax.nn.softplus(-jnp.sum(table[i] * table[j], -1)))

    def step(state: Any, pair: Any) -> Any:
        table, squares = state
        value, gradient = jax.value_and_grad(loss)(table, *pair)
        squares = squares + gradient**2
        return (table - 0.1 * gradient / (jnp.sqrt(squares) + 1e-8), squares), value

    return lax.scan(step, (table, jnp.zeros_like(table)), (centers, contexts))


def bag_of_words(table: Array, words: Array, wanted: Array, rate: Array) -> Any:
    """One step of gradient descent for a table: the mean of the words of a text, as a class."""

    def loss(table: Array) -> Array:
        return jnp.mean((jnp.tanh(table[words].mean(1)) - wanted) ** 2)

    value, gradient = jax.value_and_grad(loss)(table)
    return table - rate * gradient, value


def triplets(table: Array, ids: Array, rate: Array) -> Any:
    """One step for one table of heads and tails, left out if its loss is not finite."""

    def loss(table: Array) -> Array:
        head, near, far = table[ids]
        apart = jnp.sum((head - near) ** 2, -1) - jnp.sum((head - far) ** 2, -1)
        return jnp.mean(jax.nn.softplus(apart))

    value, gradient = jax.value_and_grad(loss)(table)
    return jnp.where(jnp.isfinite(value), table - rate * gradient, table), value


def scaled_loss(table: Array, words: Array, wanted: Array, scale: Array) -> Any:
    """One step in mixed precision: skipped, and the scale halved, if a gradient is not finite."""

    def loss(table: Array) -> Array:
        made = jnp.tanh(table[words].mean(1)).astype(jnp.bfloat16)
        return scale * jnp.mean((made - wanted.astype(jnp.bfloat16)) ** 2)

    gradient = jax.grad(loss)(table) / scale
    is_finite = jnp.all(jnp.isfinite(gradient))
    table = jnp.where(is_finite, table - 0.1 * gradient, table)
    return table, jnp.where(is_finite, scale, scale / 2)


def clipped(table: Array, words: Array, wanted: Array) -> Any:
    """One step whose largest element is at most 0.1."""

    def loss(table: Array) -> Array:
        return jnp.sum((jnp.tanh(table[words].mean(1)) - wanted) ** 2)

    gradient = jax.grad(loss)(table)
    largest = jnp.max(jnp.abs(gradient))
    return table - gradient * jnp.minimum(1.0, 0.1 / largest), largest


def mean_of_gradients(weights: dict[str, Array], texts: Array) -> Any:
    """A gradient for each text of a batch, of a recurrent network with a table, then the mean."""

    def loss(weights: dict[str, Array], words: Array) -> Array:
        def step(h: Array, word: Array) -> tuple[Array, None]:
            return jnp.tanh(h @ weights["square"] + weights["table"][word]), None

        last, _ = lax.scan(step, jnp.zeros(weights["square"].shape[:1]), words)
        return jnp.mean(last**2)

    rows = jax.vmap(jax.grad(loss), (None, 0))(weights, texts)
    return jax.tree.map(lambda row: row.mean(0), rows)


def mean_of_kernels(kernels: tuple[Array, Array], pictures: Array) -> Any:
    """The same, of two convolutions."""

    def loss(kernels: tuple[Array, Array], picture: Array) -> Array:
        for kernel in kernels:
            numbers = ("NHWC", "HWIO", "NHWC")
            made = lax.conv_general_dilated(
                picture[None], kernel, (1, 1), "SAME", dimension_numbers=numbers
            )
            picture = jax.nn.relu(made[0])
        return jnp.mean(picture**2)

    rows = jax.vmap(jax.grad(loss), (None, 0))(kernels, pictures)
    return jax.tree.map(lambda row: row.mean(0), rows)


def parameters_in_a_vector(vector: Array, x: Array) -> Array:
    """A network whose weights and biases are cut out of one vector, as optimisers of libraries want
    them, trained by gradient descent.
    """
    sizes, width = (16, 32, 32, 32, 32, 32, 1), 16

    def loss(vector: Array) -> Array:
        y, at, inputs = x, 0, width
        for outputs in sizes:
            end = at + inputs * outputs
            weights, bias = vector[at:end].reshape(inputs, outputs), vector[end : end + outputs]
            y, at, inputs = jnp.tanh(y @ weights + bias), end + outputs, outputs
        return jnp.mean(y**2)

    def step(vector: Array, _: None) -> Any:
        return vector - 0.1 * jax.grad(loss)(vector), None

    return lax.scan(step, vector, length=20)[0]


def relations(table: Array, moves: Array, triples: Array) -> Any:
    """Things, and relations between them, as vectors: each loss reads four rows of one table."""

    def loss(given: Any, triple: Array) -> Array:
        table, moves = given
        start, right, wrong = (table[triple[k]] for k in (0, 2, 3))
        end = start / jnp.linalg.norm(start) + moves[triple[1]]
        return jax.nn.relu(1 + jnp.sum(jnp.abs(end - right)) - jnp.sum(jnp.abs(end - wrong)))

    def step(given: Any, triple: Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(given, triple)
        return jax.tree.map(lambda x, g: x - 0.1 * g, given, gradient), value

    return lax.scan(step, (table, moves), triples)


def tuned_words(table: Array, w: Array, known: Array, asked: Array) -> Array:
    """Meta-learning: for each task some steps of descent, then the loss at other words."""

    def loss(table: Array, words: Array) -> Array:
        return jnp.mean(jnp.tanh(table[words] @ w) ** 2)

    def task(known: Array, asked: Array) -> Array:
        tuned = table
        for _ in range(3):
            tuned = tuned - 0.3 * jax.grad(loss)(tuned, known)
        return loss(tuned, asked)

    return jnp.mean(jax.vmap(task)(known, asked))


PROGRAMS: dict[str, Entry] = {
    "words tuned for tasks": entry(
        tuned_words, normal(20_000, 16), normal(16), below(20_000, 4, 24), below(20_000, 4, 24)
    ),
    "parameters in a vector": forward(parameters_in_a_vector, 0.2 * normal(5073), normal(32, 16)),
    "word vectors": forward(
        word_vectors, normal(4000, 16), below(4000, 50, 8), below(4000, 50, 8, seed=1)
    ),
    "bag of words": forward(
        bag_of_words, normal(20_000, 32), below(20_000, 16, 8), normal(16, 32), normal()
    ),
    "relations": forward(relations, normal(600, 16), normal(16, 16), below(16, 100, 4)),
    "triplets": forward(triplets, normal(20_000, 32), below(20_000, 3, 16), normal()),
    "scaled loss": forward(
        scaled_loss, normal(20_000, 32), below(20_000, 16, 8), normal(16, 32), normal() * 0 + 64
    ),
    "mean of gradients": forward(
        mean_of_gradients,
        {"square": 0.1 * normal(64, 64), "table": normal(500, 64)},
        below(500, 32, 20),
    ),
    "mean of kernels": forward(
        mean_of_kernels, (0.1 * normal(3, 3, 8, 8), 0.1 * normal(3, 3, 8, 8)), normal(16, 12, 12, 8)
    ),
    "clipped": forward(clipped, normal(20_000, 32), below(20_000, 16, 8), normal(16, 32)),
}
