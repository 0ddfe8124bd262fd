"""A loop that may take `bound` steps and takes `steps` of them (jax#8239).

Reverse mode needs a bound on the number of steps, and JAX's gradient then costs the bound, not the
steps: a skipped step stores dummy residuals, which the backward loop reads. It is written twice:

- nested: each level is a scan of two conds, so that a forward pass skips whole subtrees of steps;
- single: one scan of `bound` conds.

    cd examples; jaxpr-opt diff bounded_while.py:gradient --args-from bounded_while.py:arguments
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

State = tuple[jax.Array, jax.Array]
Loop = Callable[[Callable[[Any], jax.Array], Callable[[Any], Any], Any, int], Any]
Params = list[tuple[jax.Array, jax.Array]]


def nested_while(
    go_on: Callable[[Any], jax.Array],
    body: Callable[[Any], Any],
    init: Any,
    bound: int,
    *,
    checkpoint: bool = False,
) -> Any:
    """`lax.while_loop` of at most `bound` steps, a power of two, as a binary tree of scans.

    With `checkpoint`, each level is rematerialised: the fix that jax#8239 settled on.
    """
    if bound < 1 or bound & (bound - 1):
        raise ValueError(f"bound must be a power of two, got {bound}")

    def run(data: tuple[jax.Array, Any], bound: int) -> tuple[jax.Array, Any]:
        if bound == 1:
            active, state = data
            state = jax.tree.map(lambda new, old: jnp.where(active, new, old), body(state), state)
            return go_on(state), state

        def half(data: tuple[jax.Array, Any], _: None) -> tuple[Any, None]:
            active, _state = data
            return lax.cond(active, lambda d: run(d, bound // 2), lambda d: d, data), None

        return lax.scan(jax.checkpoint(half) if checkpoint else half, data, None, length=2)[0]

    return run((go_on(init), init), bound)[1]


def single_while(
    go_on: Callable[[Any], jax.Array],
    body: Callable[[Any], Any],
    init: Any,
    bound: int,
    *,
    checkpoint: bool = False,
) -> Any:
    """The same as one scan of `bound` steps; with `checkpoint`, each step is rematerialised."""

    def step(state: Any, _: None) -> tuple[Any, None]:
        return lax.cond(go_on(state), body, lambda s: s, state), None

    return lax.scan(jax.checkpoint(step) if checkpoint else step, init, None, length=bound)[0]


def mlp(params: Params, x: jax.Array) -> jax.Array:
    """The expensive step: tanh layers, the last one linear."""
    *hidden, (weight, bias) = params
    for w, b in hidden:
        x = jnp.tanh(x @ w + b)
    return x @ weight + bias


def make_params(width: int, seed: int = 0) -> Params:
    """Weights and biases of an MLP 1 -> width -> width -> 1."""
    sizes = [1, width, width, 1]
    keys = jax.random.split(jax.random.key(seed), len(sizes) - 1)
    return [
        (jax.random.normal(key, (m, n)) / m**0.5, jnp.zeros(n))
        for key, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def loss(
    params: Params, x: jax.Array, steps: jax.Array, *, bound: int, loop: Loop = nested_while
) -> jax.Array:
    """Apply the MLP to `x` `steps` times, at most `bound`, and sum what comes out."""

    def go_on(state: State) -> jax.Array:
        return state[1] < steps

    def body(state: State) -> State:
        x, step = state
        return mlp(params, x), step + 1

    x, _ = loop(go_on, body, (x, jnp.zeros_like(steps)), bound)
    return jnp.sum(x)


def gradient(params: Params, x: jax.Array, steps: jax.Array) -> jax.Array:
    """The gradient of the nested loop, with a bound small enough to read its jaxpr."""
    return jax.grad(lambda x: loss(params, x, steps, bound=8))(x)


def gradient_single(params: Params, x: jax.Array, steps: jax.Array) -> jax.Array:
    """The gradient of the single-level loop."""
    return jax.grad(lambda x: loss(params, x, steps, bound=8, loop=single_while))(x)


def arguments(width: int = 1024, batch: int = 1, steps: int = 8) -> tuple[Any, ...]:
    """What `gradient` is called with."""
    return make_params(width), jnp.ones((batch, 1)), jnp.int32(steps)
