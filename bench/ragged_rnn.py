"""The gradient of a ragged batch of RNNs, 8 steps at most, against the number of time slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from bench.harness import Program, Row, optimizer
from bench.report import plot
from bench.sweep import Options, sweep
from examples import ragged_rnn as example

LONGEST = 8
SLOTS = [8, 16, 32, 64, 128, 256]
HAND = "by hand, exact length"


def programs(quick: bool) -> list[Program]:
    """Every candidate at every number of slots; the hand-written one does not depend on it."""
    most = example.arguments(time=SLOTS[-1], longest=LONGEST)
    sweep = [
        Program(name=name, make=make, arguments=(params, xs[:, :slots], lengths), size=slots)
        for params, xs, lengths in [most]
        for slots in (SLOTS[::2] if quick else SLOTS)
        for name, make in candidates()
    ]
    return [Program(name=HAND, make=lambda: jax.grad(_loss_by_hand), arguments=most), *sweep]


def candidates() -> Iterator[tuple[str, Callable[[], Callable[..., Any]]]]:
    """The programs to compare: what each is called, and a function that makes it."""
    yield "plain JAX", lambda: jax.grad(example.loss)
    yield "jaxpr-opt", lambda: optimizer()(jax.grad(example.loss))
    yield "jaxpr-opt inside grad", lambda: jax.grad(optimizer()(example.loss))


def _loss_by_hand(params: example.Params, xs: jax.Array, lengths: jax.Array) -> jax.Array:
    return example.loss_by_hand(params, xs, lengths, LONGEST)


def run(options: Options, console: Console) -> None:
    """Measure, show, and on request plot."""
    sweep("ragged_rnn", programs(options.quick), options, console, _publish)


def _publish(rows: list[Row], folder: Path) -> None:
    """The plot of docs/."""
    names = ["plain JAX", "jaxpr-opt", HAND]
    plot(folder / "ragged_rnn.svg", rows, names, f"time slots ({LONGEST} are in use)")
