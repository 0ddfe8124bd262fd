"""Gradients of programs written with the libraries people use: flax, equinox, optax, diffrax.

Each function imports its library when it is called, and returns a function that is differentiated
with respect to its first argument, and its arguments; their sizes are such that XLA's own overhead
does not show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Program = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, and its arguments."""

KEY = 0


def _normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(KEY), shape)


def _applied(module: Any, *inputs: jax.Array) -> Program:
    """A flax module as a loss of its parameters."""
    params = module.init(jax.random.key(KEY), *inputs)
    return lambda params, *inputs: jnp.mean(module.apply(params, *inputs) ** 2), (params, *inputs)


def flax_mlp() -> Program:
    """Dense layers and gelus in `flax.linen`."""
    from flax import linen as nn

    layers = [nn.Dense(256), nn.gelu, nn.Dense(256), nn.gelu, nn.Dense(16)]
    return _applied(nn.Sequential(layers), _normal(128, 64))


def flax_convolutions() -> Program:
    """Two convolutions, group norms and pools."""
    from flax import linen as nn

    def pool(x: jax.Array) -> jax.Array:
        return nn.max_pool(x, (2, 2), strides=(2, 2))

    layers = [nn.Conv(16, (3, 3)), nn.GroupNorm(4), nn.relu, pool, nn.Conv(32, (3, 3)), nn.relu]
    return _applied(nn.Sequential([*layers, pool]), _normal(8, 32, 32, 3))


def flax_lstm() -> Program:
    """A recurrent network: a scan over time."""
    from flax import linen as nn

    return _applied(nn.RNN(nn.OptimizedLSTMCell(64)), _normal(16, 32, 64))


def flax_attention() -> Program:
    """Self-attention and layer norms, as in a transformer's block."""
    from flax import linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x))
            return x + nn.Dense(64)(nn.gelu(nn.Dense(256)(nn.LayerNorm()(x))))

    return _applied(Block(), _normal(8, 64, 64))


def flax_checkpointed_layers() -> Program:
    """Layers in a scan, each rematerialised: `nn.scan` of `nn.remat`."""
    from flax import linen as nn

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return x + nn.Dense(64)(nn.gelu(nn.Dense(256)(x))), None

    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            rng = {"params": True}
            axes = {"params": 0}
            scanned = nn.scan(nn.remat(Layer), variable_axes=axes, split_rngs=rng, length=6)
            return scanned()(x, None)[0]

    return _applied(Stack(), _normal(128, 64))


def flax_nnx_mlp() -> Program:
    """The object-oriented interface of flax, split into a graph and its state."""
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.first, self.second = nnx.Linear(64, 256, rngs=rngs), nnx.Linear(256, 8, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.second(nnx.swish(self.first(x)))

    graph, state = nnx.split(Net(nnx.Rngs(KEY)))
    return lambda state, x: jnp.mean(nnx.merge(graph, state)(x) ** 2), (state, _normal(128, 64))


def _partitioned(model: Any, call: Callable[[Any, Any], Any], x: Any) -> Program:
    """An equinox module as a loss of its arrays."""
    import equinox as eqx

    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    return lambda arrays, x: jnp.mean(call(eqx.combine(arrays, rest), x) ** 2), (arrays, x)


def equinox_mlp() -> Program:
    """A multilayer perceptron, vmapped over a batch."""
    import equinox as eqx

    model = eqx.nn.MLP(64, 16, 256, 3, key=jax.random.key(KEY))
    return _partitioned(model, lambda model, x: jax.vmap(model)(x), _normal(128, 64))


def equinox_gru() -> Program:
    """A gated recurrent cell in a scan."""
    import equinox as eqx

    def run(cell: Any, xs: jax.Array) -> jax.Array:
        step = jax.vmap(cell)
        last, _ = jax.lax.scan(lambda h, x: (step(x, h), None), jnp.zeros((16, 64)), xs)
        return last

    return _partitioned(eqx.nn.GRUCell(32, 64, key=jax.random.key(KEY)), run, _normal(32, 16, 32))


def equinox_checkpointed_while() -> Program:
    """Equinox's own loop with checkpoints: a custom derivative around while loops."""
    import equinox.internal as eqxi

    def run(w: jax.Array, x: jax.Array) -> jax.Array:
        def body(carry: Any) -> Any:
            i, x = carry
            return i + 1, jnp.tanh(x @ w)

        loop = eqxi.while_loop
        _, x = loop(lambda c: c[0] < 20, body, (0, x), max_steps=32, kind="checkpointed")
        return jnp.mean(x**2)

    return run, (_normal(64, 64) / 8, _normal(128, 64))


def optax_cross_entropy() -> Program:
    """A linear classifier under optax's softmax cross entropy."""
    import optax

    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(x @ params["first"])
        logits = hidden @ params["second"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    params = {"first": _normal(64, 256) / 8, "second": _normal(256, 100) / 16}
    return loss, (params, _normal(128, 64), jnp.arange(128) % 100)


def optax_meta_gradient() -> Program:
    """Through five steps of Adam, as a function of what it starts from: a gradient of gradients."""
    import optax

    optimizer = optax.adam(1e-2)

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    def run(w: jax.Array, xs: jax.Array) -> jax.Array:
        def step(carry: Any, x: jax.Array) -> tuple[Any, None]:
            w, state = carry
            updates, state = optimizer.update(jax.grad(loss)(w, x), state)
            return (optax.apply_updates(w, updates), state), None

        (w, _), _ = jax.lax.scan(step, (w, optimizer.init(w)), xs)
        return loss(w, xs[0])

    return run, (_normal(64, 32), _normal(5, 128, 64))


def optax_ctc() -> Program:
    """The connectionist temporal classification loss: a scan with selects."""
    import optax

    def loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
        pads = jnp.zeros(logits.shape[:2]), jnp.zeros(labels.shape)
        return optax.ctc_loss(logits, pads[0], labels, pads[1]).mean()

    return loss, (_normal(8, 64, 32), jnp.ones((8, 16), jnp.int32))


def _solved(adjoint: str) -> Program:
    import diffrax as dfx

    def run(w: jax.Array, y: jax.Array) -> jax.Array:
        term = dfx.ODETerm(lambda _, y, w: jnp.tanh(y @ w))
        solution = dfx.diffeqsolve(
            term, dfx.Tsit5(), 0.0, 1.0, 0.1, y, args=w, max_steps=16,
            adjoint=getattr(dfx, adjoint)(),
        )  # fmt: skip
        assert solution.ys is not None
        return jnp.mean(solution.ys**2)

    return run, (_normal(64, 64) / 8, _normal(128, 64))


def diffrax_checkpointed() -> Program:
    """A differential equation, backpropagated through with recursive checkpoints."""
    return _solved("RecursiveCheckpointAdjoint")


def diffrax_direct() -> Program:
    """The same with nested scans in place of checkpoints."""
    return _solved("DirectAdjoint")


def diffrax_backsolve() -> Program:
    """The same by the adjoint equation: a custom derivative that keeps the end only."""
    return _solved("BacksolveAdjoint")


PROGRAMS: dict[str, tuple[Callable[[], Program], ...]] = {
    "flax": (
        flax_mlp, flax_convolutions, flax_lstm, flax_attention, flax_checkpointed_layers,
        flax_nnx_mlp,
    ),
    "equinox": (equinox_mlp, equinox_gru, equinox_checkpointed_while),
    "optax": (optax_cross_entropy, optax_meta_gradient, optax_ctc),
    "diffrax": (diffrax_checkpointed, diffrax_direct, diffrax_backsolve),
}  # fmt: skip
"""By the library they need."""
