"""The gradient of a `while_loop` against the number of steps that it happens to take.

Plain JAX has none. By hand, one knows the number, and writes a `scan` of so many steps; the peer is
Equinox's loop that keeps as many carries as ours. The model that is trained through its beam search
is compared with a `scan` of as many steps as a search may take.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from rich.console import Console

from bench.harness import Program, Row, optimizer, optional
from bench.report import plot
from bench.sweep import Options, sweep
from examples import beam_search

STEPS = [8, 32, 128, 512, 2048]
ROWS = 33
"""The carries that ours keeps of a state of this size, and Equinox is told to."""
HAND, OURS, PEER = "by hand, so many steps", "jaxpr-opt inside grad", f"equinox, {ROWS} checkpoints"
Loss = Callable[[jax.Array, jax.Array, Any], jax.Array]


def programs(quick: bool) -> list[Program]:
    """A recurrent state of 32 x 128 by each loop at each number of steps, and beam search."""
    weights = jax.random.normal(jax.random.key(0), (128, 128)) / 128**0.5
    steps = STEPS[:3] if quick else STEPS
    loops = [
        Program(
            name=name, make=make, arguments=(weights, jnp.ones((32, 128)), jnp.int32(n)),
            group="recurrent", size=n, answer=n,
        )
        for n in steps
        for name, make in _candidates(n)
    ]  # fmt: skip
    return [*loops, *_searches()]


def _candidates(steps: int) -> Iterator[tuple[str, Callable[[], Callable[..., Any]]]]:
    for name, checkpoint in ((HAND, False), ("by hand, jax.checkpoint", True)):
        yield name, functools.partial(_gradient, _scanned(steps, checkpoint))
    yield PEER, lambda: _gradient(_equinox)
    yield OURS, lambda: _gradient(optimizer()(_while))


def _searches() -> Iterator[Program]:
    arguments = beam_search.arguments()
    by_hand = functools.partial(beam_search.loss_by_hand, most=beam_search.MOST)
    candidates = {
        f"by hand, at most {beam_search.MOST} steps": lambda: jax.grad(by_hand),
        OURS: lambda: jax.grad(optimizer()(beam_search.loss)),
    }
    for name, make in candidates.items():
        yield Program(name=name, make=make, arguments=arguments, group="beam search")


def _gradient(loss: Loss) -> Callable[..., Any]:
    return jax.grad(loss, (0, 1))


def _step(weights: jax.Array, state: jax.Array) -> jax.Array:
    return jnp.tanh(state @ weights)


def _loop(loop: Callable[..., Any], weights: jax.Array, state: jax.Array, steps: Any) -> jax.Array:
    def body(carry: Any) -> Any:
        return carry[0] + 1, _step(weights, carry[1])

    return jnp.sum(loop(lambda carry: carry[0] < steps, body, (jnp.int32(0), state))[1])


def _while(weights: jax.Array, state: jax.Array, steps: jax.Array) -> jax.Array:
    return _loop(lax.while_loop, weights, state, steps)


def _equinox(weights: jax.Array, state: jax.Array, steps: jax.Array) -> jax.Array:
    internal = optional("equinox.internal", "equinox")
    loop = functools.partial(internal.while_loop, kind="checkpointed", checkpoints=ROWS)
    return _loop(loop, weights, state, steps)


def _scanned(length: int, checkpoint: bool) -> Loss:
    def loss(weights: jax.Array, state: jax.Array, _: jax.Array) -> jax.Array:
        def step(state: jax.Array, _: None) -> tuple[jax.Array, None]:
            return _step(weights, state), None

        around = jax.checkpoint(step) if checkpoint else step
        return jnp.sum(lax.scan(around, state, None, length=length)[0])

    return loss


def run(options: Options, console: Console) -> None:
    """Measure, show, and on request plot."""
    sweep("while_gradients", programs(options.quick), options, console, _publish)


def _publish(rows: list[Row], folder: Path) -> None:
    """The plot of docs/."""
    loops = [row for row in rows if row.group == "recurrent"]
    plot(folder / "while_gradients.svg", loops, [HAND, PEER, OURS], "steps taken")
