"""Networks in layers, and loops that train them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from bench.everyday.entry import Entry, below, entry, forward, normal

LAYERS = 0.1 * normal(12, 32, 64), 0.1 * normal(12, 64, 32)


def plain_layers(weights: Any, x: Array) -> Array:
    """In a scan."""

    def layer(x: Array, given: Any) -> Any:
        up, down = given
        return x + jax.nn.gelu(x @ up) @ down, None

    return lax.scan(layer, x, weights)[0]


def checkpointed_layers(weights: Any, x: Array) -> Array:
    """The same, each made again."""

    @jax.checkpoint
    def layer(x: Array, given: Any) -> Any:
        up, down = given
        return x + jax.nn.gelu(x @ up) @ down, None

    return lax.scan(layer, x, weights)[0]


def skipped_layers(weights: Any, x: Array, keep: Array) -> Array:
    """Stochastic depth: most layers of a scan are skipped."""

    def layer(x: Array, given: Any) -> Any:
        (up, down), keep = given
        run = lambda x: x + jax.nn.gelu(x @ up) @ down  # noqa: E731
        return lax.cond(keep > 1, run, lambda x: x, x), None

    return lax.scan(layer, x, (weights, keep))[0]


def mixed_layers(weights: Array, x: Array) -> Array:
    """Every fourth layer of a scan is attention, the others are not."""

    def layer(x: Array, given: Any) -> Any:
        w, attends = given
        attend = lambda: x + jax.nn.softmax(x @ w @ x.T) @ x  # noqa: E731
        return lax.cond(attends, attend, lambda: x + jnp.tanh(x @ w)), None

    attends = np.arange(len(weights)) % 4 == 3
    return lax.scan(layer, x, (weights, attends))[0]


def early_exit(weights: Any, x: Array) -> Array:
    """Layers until the mean is large enough."""

    def layer(state: Any, given: Any) -> Any:
        x, done = state
        up, down = given
        x = lax.cond(done, lambda x: x, lambda x: x + jnp.tanh(x @ up) @ down, x)
        return (x, done | (jnp.mean(x**2) > 2)), None

    return lax.scan(layer, (x, False), weights)[0][0]


def experts(weights: Array, x: Array, which: Array) -> Array:
    """A switch over a few networks in each step."""

    def step(h: Array, i: Array) -> Any:
        runs = [lambda h, w=w: jnp.tanh(h @ w) for w in weights]
        return lax.switch(i, runs, h), None

    return lax.scan(step, x, which)[0]


def routed(experts: Array, tokens: Array, chosen: Array) -> Array:
    """Each token of a batch goes through the network that is chosen for it."""

    def one(token: Array, number: Array) -> Array:
        networks = [lambda x, e=e: jnp.tanh(x @ experts[e]) for e in range(3)]
        return lax.switch(number, networks, token)

    return jax.vmap(one)(tokens, chosen)


def unrolled(weights: Any, x: Array) -> Array:
    """Layers as Python writes them, one after the other."""
    for up, down in zip(*weights, strict=True):
        x = x + jax.nn.relu(x @ up) @ down
    return x


def hopfield(weights: Array, x: Array) -> Array:
    """A loop that multiplies by a matrix and by its transpose."""

    def step(x: Array, _: None) -> Any:
        return jax.nn.softmax(4 * (x @ weights.T)) @ weights, None

    return lax.scan(step, x, None, length=20)[0]


def equilibrium(weights: Array, x: Array) -> Array:
    """A fixed point of a layer, by so many steps."""
    step = lambda _, z: jnp.tanh(z @ weights + x)  # noqa: E731
    return lax.fori_loop(0, 30, step, jnp.zeros_like(x))


def attention(weights: Array, x: Array) -> Array:
    """Queries block by block."""
    q, k, v = (x @ w for w in weights)

    def block(_: None, q: Array) -> Any:
        return None, jax.nn.softmax(q @ k.T / 6) @ v

    return lax.scan(block, None, q.reshape(8, -1, q.shape[1]))[1].reshape(x.shape)


def trained(weights: Any, xs: Array, ys: Array) -> Any:
    """Some steps of Adam in a scan."""

    def loss(weights: Any, x: Array, y: Array) -> Array:
        first, second = weights
        return jnp.mean((jnp.tanh(x @ first) @ second - y) ** 2)

    def step(state: Any, given: Any) -> Any:
        weights, m, v, t = state
        value, grads = jax.value_and_grad(loss)(weights, *given)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, grads)
        t = t + 1
        rate = 0.01 * jnp.sqrt(1 - 0.99**t) / (1 - 0.9**t)
        weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, m, v)
        return (weights, m, v, t), value

    zeros = jax.tree.map(jnp.zeros_like, weights)
    return lax.scan(step, (weights, zeros, zeros, 0.0), (xs, ys))


def accumulated(weights: Any, xs: Array, ys: Array) -> Any:
    """Gradients of small batches, added up."""

    def loss(weights: Any, x: Array, y: Array) -> Array:
        first, second = weights
        return jnp.mean((jax.nn.relu(x @ first) @ second - y) ** 2)

    def step(total: Any, given: Any) -> Any:
        return jax.tree.map(jnp.add, total, jax.grad(loss)(weights, *given)), None

    return lax.scan(step, jax.tree.map(jnp.zeros_like, weights), (xs, ys))[0]


def cross_entropy(table: Array, x: Array, labels: Array) -> Array:
    """Chunk by chunk of a large vocabulary."""

    def chunk(total: Array, given: Any) -> Any:
        x, labels = given
        scores = jax.nn.log_softmax(x @ table.T)
        return total - jnp.take_along_axis(scores, labels[:, None], 1).sum(), None

    return lax.scan(chunk, 0.0, (x, labels))[0]


def normalised(x: Array, scale: Array) -> Any:
    """Batch norm whose statistics are carried."""

    def step(state: Any, x: Array) -> Any:
        mean, var = state
        mean, var = 0.9 * mean + 0.1 * x.mean(0), 0.9 * var + 0.1 * x.var(0)
        return (mean, var), scale * (x - mean) * lax.rsqrt(var + 1e-5)

    return lax.scan(step, (jnp.zeros(x.shape[2:]), jnp.ones(x.shape[2:])), x)


def dropped(weights: Array, x: Array, seed: Array) -> Array:
    """Dropout in each layer of a scan."""

    def layer(x: Array, given: Any) -> Any:
        w, i = given
        keep = jax.random.bernoulli(jax.random.fold_in(jax.random.key(seed), i), 0.8, x.shape)
        return jnp.where(keep, jnp.tanh(x @ w) / 0.8, 0), None

    return lax.scan(layer, x, (weights, jnp.arange(len(weights))))[0]


NETWORK = 0.1 * normal(16, 32), 0.1 * normal(32, 4)
BATCHES = normal(20, 8, 16), normal(20, 8, 4)


def attended_pairs(weights: Any, nodes: Array, edges: Array) -> Array:
    """Graph attention: scores of the features of both ends, side by side for all pairs."""
    size, wide = len(nodes), nodes.shape[1]
    for shared, scored in zip(*weights, strict=True):
        nodes = nodes @ shared
        ends = [jnp.repeat(nodes, size, axis=0), jnp.tile(nodes, (size, 1))]
        pairs = jnp.concatenate(ends, axis=1).reshape(size, size, 2 * wide)
        scores = jax.nn.leaky_relu((pairs @ scored)[..., 0])
        nodes = jax.nn.elu(jax.nn.softmax(jnp.where(edges, scores, -1e9)) @ nodes)
    return nodes


def divergence(weights: Any, x: Array) -> Array:
    """Of a flow: the trace of its Jacobian."""
    up, down = weights
    return jnp.trace(jax.jacfwd(lambda x: jnp.tanh(x @ up) @ down)(x))


def laplacian(weights: Any, x: Array) -> Array:
    """Of a network that solves an equation: the trace of its Hessian."""
    up, down = weights
    return jnp.trace(jax.hessian(lambda x: jnp.tanh(x @ up) @ down)(x))


def shared_keys(cache: Any, queries: Array) -> Array:
    """One word of a language model in which four heads of queries share one of keys and values."""
    keys, values = (jnp.repeat(each, 4, axis=2) for each in cache)
    scores = jnp.einsum("bhd,bshd->bhs", queries, keys) / queries.shape[-1] ** 0.5
    return jnp.einsum("bhs,bshd->bhd", jax.nn.softmax(scores), values)


PROGRAMS: dict[str, Entry] = {
    "shared keys": entry(
        shared_keys, (normal(2, 512, 2, 64), normal(2, 512, 2, 64, seed=1)), normal(2, 8, 64)
    ),
    "divergence": entry(divergence, (0.1 * normal(400, 64), 0.1 * normal(64, 400)), normal(400)),
    "laplacian": entry(laplacian, (0.1 * normal(400, 64), 0.1 * normal(64)), normal(400)),
    "plain layers": entry(plain_layers, LAYERS, normal(16, 32)),
    "checkpointed layers": entry(checkpointed_layers, LAYERS, normal(16, 32)),
    "attended pairs": entry(
        attended_pairs,
        (0.2 * normal(2, 16, 16), normal(2, 32, 1)),
        normal(48, 16),
        below(4, 48, 48) < 1,
    ),
    "skipped layers": entry(skipped_layers, LAYERS, normal(16, 32), normal(12)),
    "mixed layers": entry(mixed_layers, 0.1 * normal(12, 32, 32), 0.1 * normal(64, 32)),
    "early exit": entry(early_exit, LAYERS, normal(16, 32)),
    "experts": entry(experts, 0.1 * normal(4, 32, 32), normal(8, 32), below(4, 20)),
    "routed": entry(routed, 0.1 * normal(3, 64, 64), normal(32, 64), below(4, 32)),
    "unrolled": entry(unrolled, LAYERS, normal(16, 32)),
    "hopfield": entry(hopfield, 0.2 * normal(64, 64), normal(8, 64)),
    "equilibrium": entry(equilibrium, 0.1 * normal(32, 32), normal(8, 32)),
    "attention": entry(attention, 0.2 * normal(3, 32, 32), normal(128, 32)),
    "trained": entry(trained, NETWORK, *BATCHES),
    "accumulated": forward(accumulated, NETWORK, *BATCHES),
    "cross entropy": entry(cross_entropy, normal(256, 32), normal(8, 16, 32), below(256, 8, 16)),
    "normalised": entry(normalised, normal(20, 8, 32), normal(32)),
    "dropped": entry(dropped, 0.2 * normal(12, 32, 32), normal(16, 32), 0),
}
