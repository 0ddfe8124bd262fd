"""Memory budgets of gradients of straight-line code, beside `jax.checkpoint` by hand.

By hand: without it, around each layer, around two, around four, and around each with the policies
that keep products.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from rich.console import Console

from bench import budgets
from bench.budgets import BUDGETS
from bench.everyday import entry
from bench.harness import Program, optimizer
from bench.sweep import Options, sweep

Layer = Callable[[Any, Any], Any]
"""`(weights, state) -> state`; of a U-Net the state is what the way up still needs, too."""


class Net(NamedTuple):
    """Layers, one after the other."""

    layers: tuple[Layer, ...]
    weights: tuple[Any, ...]
    start: Any


class ByHand(NamedTuple):
    """How many layers somebody has put under one `jax.checkpoint`."""

    layers: int = 0
    policy: Any = None


_policies = jax.checkpoint_policies
BY_HAND = {
    "by hand, none": ByHand(),
    "by hand, each layer": ByHand(1),
    "by hand, two layers": ByHand(2),
    "by hand, four layers": ByHand(4),
    "by hand, products": ByHand(1, _policies.dots_saveable),
    "by hand, products with weights": ByHand(1, _policies.dots_with_no_batch_dims_saveable),
}


def programs(quick: bool) -> list[Program]:
    """Each net by hand, then within each budget, above and below `grad`."""
    return [each for name, net in _nets(4 if quick else 12) for each in _of(name, net)]


def _of(group: str, net: Net) -> Iterator[Program]:
    arguments = net.weights, net.start
    for name, how in BY_HAND.items():
        make = functools.partial(jax.grad, functools.partial(_loss, net.layers, how))
        yield Program(name=name, make=make, arguments=arguments, group=group)
    plain = functools.partial(_loss, net.layers, ByHand())
    for budget in BUDGETS:
        above = functools.partial(_above, plain, budget)
        yield Program(name=f"jaxpr-opt, {budget}", make=above, arguments=arguments, group=group)
    below = functools.partial(_below, plain, "minimal")
    yield Program(name="jaxpr-opt below grad", make=below, arguments=arguments, group=group)


def _above(loss: Callable[..., Any], budget: str | float) -> Callable[..., Any]:
    made: Callable[..., Any] = optimizer()(jax.grad(loss), memory=budget)
    return made


def _below(loss: Callable[..., Any], budget: str | float) -> Callable[..., Any]:
    return jax.grad(optimizer()(loss, memory=budget))


def _loss(layers: Sequence[Layer], how: ByHand, weights: Any, start: Any) -> jax.Array:
    state, size = start, how.layers or len(layers)
    for first in range(0, len(layers), size):
        some = functools.partial(_run, layers[first : first + size])
        kept = jax.checkpoint(some, policy=how.policy) if how.layers else some
        state = kept(weights[first : first + size], state)
    return sum((jnp.mean(leaf**2) for leaf in jax.tree.leaves(state)), jnp.zeros(()))


def _run(layers: Sequence[Layer], weights: Any, state: Any) -> Any:
    for layer, each in zip(layers, weights, strict=True):
        state = layer(each, state)
    return state


# -- the programs ---------------------------------------------------------------------------------


def _nets(depth: int) -> Iterator[tuple[str, Net]]:
    square = normal((256, 256)) / 16
    yield "MLP", Net((_dense,) * depth, (square,) * depth, normal((2048, 256)))
    layer = normal((128, 384)) / 12, normal((128, 512)) / 12, normal((512, 128)) / 24
    yield "transformer", Net((block,) * depth, (layer,) * depth, normal((4, 128, 128)))
    filters = normal((3, 3, 16, 16)) / 12, normal((3, 3, 16, 16)) / 12
    images = normal((8, 32, 32, 16))
    yield "ResNet", Net((_residual,) * depth, (filters,) * depth, images)
    experts = normal((64, 4)), normal((4, 64, 128)) / 8, normal((4, 128, 64)) / 11
    yield "mixture of experts", Net((_experts,) * depth, (experts,) * depth, normal((1024, 64)))
    mixed = normal((128, 256)) / 12, normal((256, 128)) / 16
    rows = normal((512, 128)).astype(jnp.bfloat16)
    yield "bfloat16", Net((_half,) * depth, (mixed,) * depth, rows)
    levels = depth // 4
    down, up = (_down,) * levels, (_up,) * levels
    narrow, wide = normal((3, 3, 16, 16)) / 12, normal((3, 3, 32, 16)) / 17
    yield "U-Net", Net(down + up, (narrow,) * levels + (wide,) * levels, (normal((8, 64, 64, 16)),))


def normal(shape: tuple[int, ...]) -> jax.Array:
    """Random numbers, for which nothing is compiled."""
    return jnp.asarray(entry.normal(*shape))


def _dense(w: jax.Array, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ w)


def block(weights: Any, x: jax.Array) -> jax.Array:
    """A layer of a transformer."""
    qkv, up, down = weights
    q, k, v = jnp.split(_normed(x, -1) @ qkv, 3, -1)
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / 11.3
    x = x + jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)
    return x + jax.nn.gelu(_normed(x, -1) @ up) @ down


def _experts(weights: Any, x: jax.Array) -> jax.Array:
    """A layer of four networks, of which two make each row."""
    gate, up, down = weights
    parts, chosen = lax.top_k(jax.nn.softmax(x @ gate), 2)
    rates = (jax.nn.one_hot(chosen, 4) * parts[..., None]).sum(1)
    inner = jax.nn.silu(jnp.einsum("td,edh->eth", x, up))
    return x + jnp.einsum("eth,ehd,te->td", inner, down, rates)


def _half(weights: Any, x: jax.Array) -> jax.Array:
    """A layer in 16 bits, of weights of 32."""
    up, down = (w.astype(x.dtype) for w in weights)
    return x + jax.nn.gelu(x @ up) @ down


def _residual(filters: Any, x: jax.Array) -> jax.Array:
    first, second = filters
    y = jax.nn.relu(_normed(_conv(x, first), (1, 2)))
    return jax.nn.relu(x + _normed(_conv(y, second), (1, 2)))


def _down(filters: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    x = jax.nn.gelu(_normed(_conv(state[-1], filters), (1, 2)))
    return (*state[:-1], x, x[:, ::2, ::2])


def _up(filters: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    *skips, skip, x = state
    larger = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
    both = jnp.concatenate([larger, skip], -1)
    return (*skips, jax.nn.gelu(_normed(_conv(both, filters), (1, 2))))


def _conv(x: jax.Array, filters: jax.Array) -> jax.Array:
    kinds = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, filters, (1, 1), "SAME", dimension_numbers=kinds)


def _normed(x: jax.Array, axis: Any) -> jax.Array:
    apart = x - x.mean(axis, keepdims=True)
    return apart * lax.rsqrt((apart**2).mean(axis, keepdims=True) + 1e-5)


def run(options: Options, console: Console) -> None:
    """Measure and show."""
    console.print(
        budgets.table(sweep("memory_unrolled", programs(options.quick), options, console))
    )
