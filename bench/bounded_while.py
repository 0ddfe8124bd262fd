"""The gradient of a bounded while loop (jax#8239), eight real steps, against the bound.

The number of steps is an argument, so that no compiler can fold it away. Peers get what they ask
for: equinox its own loop, the issue's fix its `jax.checkpoint`, and the hand-written program the
number of steps at compile time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from rich.console import Console

from bench.harness import Program, Row, optimizer, optional
from bench.report import plot
from bench.sweep import Options, sweep
from examples import bounded_while as example

STEPS = 8
BOUNDS = [2**n for n in range(3, 13)]
BATCHES = [1, 256]
LOOPS = {"nested": example.nested_while, "single": example.single_while}
HAND = "by hand, exact length"

Gradient = Callable[..., jax.Array]


def programs(quick: bool) -> list[Program]:
    """Every candidate at every bound and batch."""
    bounds = [8, 64, 256] if quick else BOUNDS
    return [
        Program(name=name, make=make, arguments=arguments, group=f"batch {batch}", size=bound)
        for batch in BATCHES
        for arguments in [example.arguments(batch=batch, steps=STEPS)]
        for name, bound, make in candidates(bounds)
    ]


def candidates(bounds: Sequence[int]) -> Iterator[tuple[str, int, Callable[[], Gradient]]]:
    """The programs to compare: what each is called, its bound, and a function that makes it."""
    yield HAND, 0, lambda: _gradient(_loss_by_hand)
    for bound in bounds:
        for form, loop in LOOPS.items():
            for name, make in _versions(loop, bound).items():
                yield f"{name}, {form}", bound, make
        for kind in ("checkpointed", "bounded"):
            yield f"equinox, {kind}", bound, _equinox(kind, bound)


def _versions(loop: Any, bound: int) -> dict[str, Callable[[], Gradient]]:
    """The programs that start from the same source."""

    def loss(*args: Any) -> jax.Array:
        return example.loss(*args, bound=bound, loop=loop)

    def checkpointed(*args: Any) -> jax.Array:
        return example.loss(*args, bound=bound, loop=_with_checkpoint(loop))

    return {
        "plain JAX": lambda: _gradient(loss),
        "jax.checkpoint": lambda: _gradient(checkpointed),
        "Enzyme-JAX": lambda: _enzyme()(_gradient(loss)),
        "jaxpr-opt": lambda: optimizer()(_gradient(loss)),
        "jaxpr-opt inside grad": lambda: _gradient(optimizer()(loss)),
    }


def _gradient(loss: Callable[..., jax.Array]) -> Gradient:
    """The gradient with respect to `x`, as in the issue."""
    return jax.grad(loss, argnums=1)


def _with_checkpoint(loop: Any) -> example.Loop:
    return lambda *args: loop(*args, checkpoint=True)


def _loss_by_hand(params: example.Params, x: jax.Array, steps: jax.Array) -> jax.Array:
    del steps  # known to the author

    def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return example.mlp(params, x), None

    return jnp.sum(lax.scan(step, x, None, length=STEPS)[0])


def _equinox(kind: str, bound: int) -> Callable[[], Gradient]:
    def make() -> Gradient:
        internal = optional("equinox.internal", "equinox")

        def loop(go_on: Any, body: Any, init: Any, bound: int) -> Any:
            return internal.while_loop(go_on, body, init, max_steps=bound, kind=kind)

        return _gradient(lambda *args: example.loss(*args, bound=bound, loop=loop))

    return make


def _enzyme() -> Any:
    """Enzyme-JAX's optimiser of StableHLO, with its default pipeline."""
    return optional("enzyme_ad.jax", "enzyme-ad").enzyme_jax_ir()


def run(options: Options, console: Console) -> None:
    """Measure, show, and on request plot."""
    sweep("bounded_while", programs(options.quick), options, console, _publish)


def _publish(rows: list[Row], folder: Path) -> None:
    """The plot of the README."""
    names = [
        "plain JAX, nested",
        "jax.checkpoint, nested",
        "equinox, checkpointed",
        "equinox, bounded",
        "Enzyme-JAX, nested",
        "jaxpr-opt, nested",
        HAND,
    ]
    plot(
        folder / "bounded_while.svg",
        rows,
        names,
        f"bound on the number of steps ({STEPS} are taken)",
    )
