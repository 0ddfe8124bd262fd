"""A large ordinary program: one training step of a transformer, in plain `jax.numpy`.

Its layers are a Python loop, which makes a long jaxpr, or a scan, which makes a nested one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, jax.Array]


def make_params(layers: int, width: int, vocabulary: int) -> Params:
    """Weights by name; those of a layer have a leading axis of length `layers`."""
    shapes = {
        "qkv": (layers, width, 3 * width),
        "out": (layers, width, width),
        "up": (layers, width, 4 * width),
        "down": (layers, 4 * width, width),
        "embed": (vocabulary, width),
    }
    keys = jax.random.split(jax.random.key(0), len(shapes))
    params = {
        name: jax.random.normal(key, shape) / shape[-2] ** 0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return params | {"scale1": jnp.ones((layers, width)), "scale2": jnp.ones((layers, width))}


def _normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    return scale * x * lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def _attention(layer: Params, x: jax.Array, heads: int) -> jax.Array:
    batch, length, width = x.shape
    q, k, v = jnp.split(x @ layer["qkv"], 3, axis=-1)
    q, k, v = (y.reshape(batch, length, heads, width // heads) for y in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width // heads) ** 0.5
    causal = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
    return mixed.reshape(batch, length, width) @ layer["out"]


def _block(layer: Params, x: jax.Array, heads: int) -> jax.Array:
    x = x + _attention(layer, _normalise(x, layer["scale1"]), heads)
    hidden = jax.nn.gelu(_normalise(x, layer["scale2"]) @ layer["up"])
    return x + hidden @ layer["down"]


def loss(params: Params, tokens: jax.Array, *, heads: int = 4, scanned: bool = False) -> jax.Array:
    """Cross entropy of the next token; `scanned` says how the layers are looped over."""
    layers = {name: w for name, w in params.items() if name != "embed"}
    x = params["embed"][tokens[:, :-1]]
    if scanned:
        x, _ = lax.scan(lambda x, layer: (_block(layer, x, heads), None), x, layers)
    else:
        for i in range(params["qkv"].shape[0]):
            x = _block({name: w[i] for name, w in layers.items()}, x, heads)
    logits = jax.nn.log_softmax(x @ params["embed"].T)
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1))


def train_step(
    params: Params,
    momentum: Params,
    tokens: jax.Array,
    *,
    scanned: bool = False,
) -> tuple[Params, Params, jax.Array]:
    """One step of gradient descent with momentum."""
    value, gradient = jax.value_and_grad(loss)(params, tokens, scanned=scanned)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    return jax.tree.map(lambda p, m: p - 1e-3 * m, params, momentum), momentum, value
