"""What docs/tutorial.md gains: a training step against the length of its sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from bench.harness import Program, Row, optimizer
from bench.report import plot
from bench.sweep import Options, sweep
from examples import tutorial

LENGTHS = [32, 64, 128, 256, 512]
WRITTEN, OURS = "as it was written", "jaxpr-opt"


def programs(quick: bool) -> Iterator[Program]:
    """The step as it is and optimised, at each length."""
    for length in LENGTHS[::2] if quick else LENGTHS:
        arguments = tutorial.arguments(length)
        for name, make in (
            (WRITTEN, lambda: tutorial.train_step),
            (OURS, lambda: optimizer()(tutorial.train_step)),
        ):
            yield Program(
                name=name,
                make=make,
                arguments=arguments,
                group="a training step",
                size=length,
                answer=length,
            )


def run(options: Options, console: Console) -> None:
    """Measure, show, and on request plot."""
    sweep("tutorial", list(programs(options.quick)), options, console, _publish)


def _publish(rows: list[Row], folder: Path) -> None:
    """The plot of docs/."""
    plot(folder / "tutorial.svg", rows, [WRITTEN, OURS], "words in a sentence")
