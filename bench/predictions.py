"""What the cost model predicts of programs, beside what is measured of them compiled.

For the gradient of every program of `bench.residuals`, plain and optimised: temporary memory
(`jaxpr_opt.insight.temporaries`) and seconds (`jaxpr_opt.insight.prediction`). The model is
calibrated here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from bench.harness import Program, measure, optimizer
from bench.residuals import examples, of_libraries
from bench.sweep import Options
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.insight.prediction import predicted_seconds
from jaxpr_opt.insight.temporaries import temporary_bytes
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.reports import observe

GOAL = 1.25
"""Predicted memory that is off by more is marked."""


class Predicted(NamedTuple):
    """A program, and what was predicted and measured of it; None: not known, or not measured."""

    name: str
    bytes: int
    temp_bytes: int | None
    model_seconds: float | None
    seconds: float | None

    @property
    def is_off(self) -> bool:
        """Whether the memory that is predicted is another; a kilobyte more or less is not."""
        if self.temp_bytes is None:
            return False
        low, high = sorted((self.bytes, self.temp_bytes))
        return high > GOAL * low + 1024


def predict(name: str, graph: Graph) -> Predicted:
    """The predictions, nothing measured yet."""
    return Predicted(
        name, temporary_bytes(graph), None, predicted_seconds(graph, cost_model()), None
    )


def both(function: Callable[..., Any], argnums: Any, arguments: Any) -> Iterator[tuple[str, Any]]:
    """The gradient as it is and optimised: each with the graph of what is compiled."""
    gradient = jax.value_and_grad(function, argnums)
    yield "plain JAX", observe.original(gradient, arguments, {})
    yield "jaxpr-opt", observe.optimized(gradient, arguments, {})[0]


def rows(options: Options) -> Iterator[Predicted]:
    """Predictions of every program that the options select, and what was measured."""
    for program in (*examples(), *of_libraries()):
        if options.only not in program.name:
            continue
        gradient = jax.value_and_grad(program.function, program.argnums)
        graphs = both(program.function, program.argnums, program.arguments)
        found = [predict(f"{program.name}: {name}", graph) for name, graph in graphs]
        makers = (lambda g=gradient: g, lambda g=gradient: optimizer()(g))
        names = (each.name for each in found)
        timed = measure(
            [
                Program(name=n, make=make, arguments=program.arguments)
                for n, make in zip(names, makers, strict=True)
            ],
            rounds=options.rounds or (5 if options.quick else 20),
        )
        for each, row in zip(found, timed, strict=True):
            yield each._replace(temp_bytes=row.temp_bytes, seconds=row.seconds)


def run(options: Options, console: Console) -> None:
    """Measure and show; the last lines say how good the model is."""
    found = list(rows(options))
    console.print(table(found))
    pairs = list(zip(found[::2], found[1::2], strict=True))
    near = sum(not each.is_off for each in found)
    console.print(f"temporary memory within {GOAL}x: {near} of {len(found)}")
    signs = [sign for plain, ours in pairs if (sign := _right_sign(plain, ours)) is not None]
    console.print(f"which is faster, where it shows: {sum(signs)} of {len(signs)} right")


def _right_sign(plain: Predicted, ours: Predicted) -> bool | None:
    """Whether it is predicted which of two is faster; None where they are as fast, or unknown."""
    if None in (plain.seconds, ours.seconds, plain.model_seconds, ours.model_seconds):
        return None
    assert plain.seconds and ours.seconds and plain.model_seconds and ours.model_seconds
    measured = plain.seconds / ours.seconds
    if 0.9 <= measured <= 1.1:
        return None
    return (measured > 1) == (plain.model_seconds > ours.model_seconds)


def table(found: list[Predicted]) -> Table:
    """A line a program; memory that is off is marked."""
    shown = Table(box=box.MARKDOWN)
    shown.add_column("program", no_wrap=True)
    for title in ("kB, predicted", "measured", "ms, predicted", "measured"):
        shown.add_column(title, justify="right")
    for row in found:
        mark = " !" if row.is_off else ""
        shown.add_row(
            row.name,
            _cell(row.bytes, 1e-3),
            _cell(row.temp_bytes, 1e-3) + mark,
            _cell(row.model_seconds, 1e3),
            _cell(row.seconds, 1e3),
        )
    return shown


def _cell(figure: float | None, factor: float) -> str:
    return "-" if figure is None else f"{figure * factor:,.4g}"
