"""What gradients keep, as reported, beside what compiled programs return and set aside.

Three figures for every program of the examples and for programs of libraries that people use:

- kept: what `jaxpr_opt.residuals` reports, from shapes alone, against the outputs of the compiled
  forward pass, `jax.jit(lambda *args: jax.vjp(f, *args))`, less the function's own.  They agree to
  the byte;
- read: what of it the backward pass reads, against nothing: XLA drops the rest where one `jit` has
  both halves in it;
- peak: the estimated peak of the gradient against what XLA sets aside for it: arguments, outputs
  and temporaries.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from rich import box
from rich.console import Console
from rich.table import Table

from bench import carried_arrays, libraries, report, transformer
from bench.sweep import DOCS, Options
from examples import bounded_while, ragged_rnn
from jaxpr_opt.insight.liveness import peak_bytes
from jaxpr_opt.reports import observe
from jaxpr_opt.reports.residuals import residuals
from jaxpr_opt.sizes import bytes_text

FACTOR = 2.0
"""An estimated peak that is off by more is listed."""
POINTER = 8
"""Bytes that XLA:CPU counts for each output, beside the output."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A function to be differentiated; its arguments are made when they are asked for."""

    name: str
    function: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    argnums: int | tuple[int, ...] = 0

    @functools.cached_property
    def arguments(self) -> tuple[Any, ...]:
        return self.make()


class Measured(NamedTuple):
    """Bytes, reported and compiled."""

    name: str
    kept: int
    read: int
    returned: int
    peak: int
    set_aside: int

    @property
    def ratio(self) -> float:
        """Of the estimated peak to what XLA sets aside."""
        return self.peak / self.set_aside

    @property
    def is_off(self) -> bool:
        return not 1 / FACTOR <= self.ratio <= FACTOR


def examples(share: int = 32) -> Iterator[Program]:
    """The gradients of examples/, at a fraction of the size the benchmarks run them at."""
    for family in carried_arrays.FAMILIES:
        if family.gradient is not None:
            make = functools.partial(family.arguments, max(family.largest // share, 8))
            yield Program(family.name, family.plain, make, family.gradient)
            yield Program(f"{family.name}, by hand", family.hand, make, family.gradient)
    make = functools.partial(bounded_while.arguments, width=128, batch=32)
    for loop in (bounded_while.nested_while, bounded_while.single_while):
        loss = functools.partial(bounded_while.loss, bound=64, loop=loop)
        yield Program(loop.__name__, loss, make, (0, 1))
    small = functools.partial(
        ragged_rnn.arguments, batch=8, time=32, longest=5, features=8, width=64
    )
    yield Program("ragged_rnn", ragged_rnn.loss, small)
    for scanned in (False, True):
        loss = functools.partial(transformer.loss, scanned=scanned)
        yield Program(f"transformer{', scanned' * scanned}", loss, _of_transformer)


def _of_transformer() -> tuple[Any, ...]:
    return transformer.make_params(4, 128, 512), jnp.zeros((4, 33), jnp.int32)


def of_library(make: Callable[[], tuple[Any, ...]]) -> Program:
    """A program of a library; ImportError where the library is not installed."""
    function, arguments, *argnums = make()
    return Program(make.__name__, function, lambda: arguments, *argnums)


def of_libraries() -> Iterator[Program]:
    """Programs of the libraries that are installed."""
    for makers in libraries.PROGRAMS.values():
        for make in makers:
            try:
                yield of_library(make)
            except ImportError:
                continue


def returned_bytes(program: Program) -> int:
    """What the compiled forward pass returns beside the function's own outputs; a value that it
    returns twice counts once.
    """
    numbers = (program.argnums,) if isinstance(program.argnums, int) else program.argnums

    def forward(*args: Any) -> Any:
        def chosen(*wrt: Any) -> Any:
            filled = dict(zip(numbers, wrt, strict=True))
            return program.function(*(filled.get(i, arg) for i, arg in enumerate(args)))

        return jax.vjp(chosen, *(args[number] for number in numbers))

    memory: Any = jax.jit(forward).lower(*program.arguments).compile().memory_analysis()
    values = observe.original(forward, program.arguments, {}).outputs
    own = observe.original(program.function, program.arguments, {}).outputs
    twice = sum(v.nbytes for v in values) - sum(v.nbytes for v in dict.fromkeys(values))
    returned = memory.output_size_in_bytes - POINTER * len(values)
    return int(returned) - sum(v.nbytes for v in own) - twice


def measure(program: Program) -> Measured:
    """Compile the forward pass and the gradient; neither is run."""
    report = residuals(program.function, *program.arguments, argnums=program.argnums)
    gradient = jax.value_and_grad(program.function, program.argnums)
    memory: Any = jax.jit(gradient).lower(*program.arguments).compile().memory_analysis()
    set_aside = (
        memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    )
    return Measured(
        program.name,
        report.bytes,
        report.bytes - report.unread_bytes,
        returned_bytes(program),
        peak_bytes(observe.original(gradient, program.arguments, {})),
        int(set_aside),
    )


def run(options: Options, console: Console) -> None:
    """Measure, show and, on request, publish."""
    rows = []
    for program in (*examples(), *of_libraries()):
        if options.only in program.name:
            rows.append(measure(program))
            console.print(f"[dim]{program.name}[/dim]")
    console.print(table(rows))
    if options.publish:
        path = DOCS / f"residuals-jax-{jax.__version__}.md"
        with path.open("w") as file:
            file.write(
                f"# Residuals and peak memory, reported and compiled\n\n{_summary(rows)}\n\n"
            )
            Console(file=file, width=160).print(table(rows))


def table(rows: list[Measured]) -> Table:
    """A line a program; what disagrees, or is off by a factor, is marked."""
    shown = Table(box=box.MARKDOWN)
    shown.add_column("program", no_wrap=True)
    titles = ("kept, reported", "returned, compiled", "of it read", "peak, estimated", "XLA:CPU")
    for title in (*titles, "ratio"):
        shown.add_column(title, justify="right")
    for row in rows:
        agrees = "" if row.kept == row.returned else " !"
        shown.add_row(
            row.name,
            f"{row.kept:,}",
            f"{row.returned:,}{agrees}",
            f"{row.read:,}",
            bytes_text(row.peak),
            bytes_text(row.set_aside),
            f"{row.ratio:.2f}{' !' if row.is_off else ''}",
        )
    return shown


def _summary(rows: list[Measured]) -> str:
    agreeing = sum(row.kept == row.returned for row in rows)
    off = [row.name for row in rows if row.is_off]
    spread = math.exp(math.sqrt(sum(math.log(row.ratio) ** 2 for row in rows) / len(rows)))
    where = ", ".join(f"{key} {value}" for key, value in report.environment().items())
    return (
        "What `jaxpr_opt.residuals` reports and what the compiled forward pass returns agree to"
        f" the byte for {agreeing} of {len(rows)} programs. The estimated peak of the gradient is"
        f" typically within a factor of {spread:.2f} of what XLA:CPU sets aside; by more than"
        f" {FACTOR:g} it is off for: {', '.join(off) or 'none'}. {where}."
    )
