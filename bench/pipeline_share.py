"""What the optimiser costs on a large program: a training step of a 24-layer transformer.

Its time is all that it adds to tracing and lowering: import, passes, export, and JAX's second look
at the result.  With the layers unrolled it finds nothing to do: the compiled program must stay the
same up to metadata, and a call cost the same.  With the layers in a scan, the loop keeps fewer
residuals.

A second table shows how set-up grows with the length of straight-line code whose gradient is taken:
equations of the gradient, seconds of plain JAX, and how much longer both orders take.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from bench.harness import optimizer
from bench.sweep import Options
from bench.transformer import make_params, train_step

LAYERS = 24
LENGTHS = (1000, 2000, 4000, 8000)
"""Steps of straight-line code: its gradient has three equations for each."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """The least time of each step from a function to its executable, and the executable."""

    trace: float
    lower: float
    compile: float
    executable: Any

    @property
    def total(self) -> float:
        """Seconds from function to executable."""
        return self.trace + self.lower + self.compile


def run(options: Options, console: Console) -> None:
    """Show time by step, the share of the optimiser, and whether the program stayed the same."""
    params = make_params(layers=6 if options.quick else LAYERS, width=256, vocabulary=512)
    tokens = jnp.arange(4 * 65).reshape(4, 65) % 512
    arguments = (params, params, tokens)
    table = Table(title="pipeline_share: setting up a training step [s]", title_justify="left")
    for column in ("layers", "program"):
        table.add_column(column)
    for column in ("trace", "lower", "compile", "optimiser", "share", "HLO", "temp MB", "step ms"):
        table.add_column(column, justify="right")
    for layers, scanned in (("unrolled", False), ("scanned", True)):
        step = partial(train_step, scanned=scanned)
        with console.status(f"pipeline_share: {layers}"):
            plain, ours = _set_up(step, arguments, repeats=1 if options.quick else 3)
        added = ours.trace + ours.lower - plain.trace - plain.lower
        same = normalised(plain.executable.as_text()) == normalised(ours.executable.as_text())
        steps = step_seconds([plain.executable, ours.executable], arguments, options.rounds or 10)
        _add_row(table, layers, "plain JAX", plain, steps[0], "", "", "")
        shown = (f"{added:.3f}", f"{added / plain.total:.1%}", "same" if same else "differs")
        _add_row(table, "", "jaxpr-opt", ours, steps[1], *shown)
    console.print(table)
    console.print(_growth(LENGTHS[:2] if options.quick else LENGTHS))
    plain_call, our_call = call_seconds(1000 if options.quick else 5000)
    console.print(
        f"a cached call: {plain_call * 1e6:.2f} us plain, {our_call * 1e6:.2f} us optimised"
    )


def _add_row(
    table: Table, layers: str, program: str, setup: Setup, step: float, *shares: str
) -> None:
    times = (f"{seconds:.3f}" for seconds in (setup.trace, setup.lower, setup.compile))
    temp = setup.executable.memory_analysis().temp_size_in_bytes
    table.add_row(layers, program, *times, *shares, f"{temp / 1e6:.1f}", f"{step * 1e3:.1f}")


def _growth(lengths: Iterable[int]) -> Table:
    """Processor seconds of tracing and lowering the gradient of straight-line code."""
    table = Table(title="pipeline_share: growth of set-up [s]", title_justify="left")
    for column in ("equations", "plain JAX", "grad of optimised", "optimised grad"):
        table.add_column(column, justify="right")
    for length in lengths:
        fun, x = straight(length), jnp.ones(8)
        count = len(jax.make_jaxpr(jax.grad(fun))(x).eqns)
        plain, inside, outside = (
            _lowering_seconds(make, fun, x)
            for make in (
                lambda f: jax.jit(jax.grad(f)),
                lambda f: jax.jit(jax.grad(optimizer()(f))),
                lambda f: jax.jit(optimizer()(jax.grad(f))),
            )
        )
        times = (f"{t:.2f} ({t / plain:.2f}x)" for t in (inside, outside))
        table.add_row(str(count), f"{plain:.2f}", *times)
    return table


def straight(length: int) -> Callable[[jax.Array], jax.Array]:
    """A function in whose code each value is read by the next two, and some at the end."""

    def fun(x: jax.Array) -> jax.Array:
        values = [x, jnp.sin(x)]
        for k in range(length):
            a, b = values[-2:]
            values.append(jnp.sin(b) if k % 5 == 0 else a * b if k % 3 == 0 else a + b)
        return jnp.sum(sum(values[:: length // 8], start=jnp.zeros_like(x)))

    return fun


def _lowering_seconds(
    make: Callable[[Any], Any], fun: Callable[..., Any], x: jax.Array, repeats: int = 2
) -> float:
    """The least processor time of tracing and lowering, from cleared caches."""
    least = float("inf")
    for _ in range(repeats):
        jax.clear_caches()
        start = time.process_time()
        make(partial(fun)).lower(x)
        least = min(least, time.process_time() - start)
    return least


def step_seconds(executables: list[Any], arguments: tuple[Any, ...], rounds: int) -> list[float]:
    """The least time of a call of each, in turns."""
    least = [float("inf")] * len(executables)
    for _ in range(rounds):
        for i, executable in enumerate(executables):
            start = time.perf_counter()
            jax.block_until_ready(executable(*arguments))
            least[i] = min(least[i], time.perf_counter() - start)
    return least


def _set_up(
    step: Callable[..., Any], arguments: tuple[Any, ...], repeats: int
) -> tuple[Setup, Setup]:
    """Set up the plain and the optimised program in turns, from cleared caches."""
    makers: list[Callable[[Any], Any]] = [jax.jit, optimizer()]
    seen: list[list[Setup]] = [[], []]
    for _ in range(repeats + 1):  # the first round loads modules: it does not count
        for make, setups in zip(makers, seen, strict=True):
            jax.clear_caches()
            start = time.perf_counter()
            traced = make(partial(step)).trace(*arguments)
            then = time.perf_counter()
            lowered = traced.lower()
            later = time.perf_counter()
            compiled = lowered.compile()
            end = time.perf_counter()
            setups.append(Setup(then - start, later - then, end - later, compiled))
    plain, ours = (_least(setups[1:]) for setups in seen)
    return plain, ours


def _least(setups: list[Setup]) -> Setup:
    return Setup(
        min(s.trace for s in setups),
        min(s.lower for s in setups),
        min(s.compile for s in setups),
        setups[0].executable,
    )


def normalised(hlo: str) -> str:
    """The text of a compiled module without metadata, its names numbered as they appear."""
    body = hlo[hlo.index("\n") :]
    body = re.sub(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(\d.*\n)*", "\n", body)
    body = re.sub(r",? metadata=\{[^}]*\}", "", body)
    numbers: dict[str, str] = {}
    fresh = itertools.count()
    return re.sub(r"%[\w.\-]+", lambda m: numbers.setdefault(m[0], f"%{next(fresh)}"), body).strip()


def call_seconds(calls: int) -> tuple[float, float]:
    """The least time of a cached call of a small function, plain and optimised, in turns."""

    def small(x: jax.Array) -> jax.Array:
        return x + 1

    x = jnp.float32(1)
    functions = [jax.jit(small), optimizer()(small)]
    least = [float("inf")] * len(functions)
    for _ in range(calls):
        for i, function in enumerate(functions):
            start = time.perf_counter()
            function(x)
            least[i] = min(least[i], time.perf_counter() - start)
    return least[0], least[1]
