"""Measure programs side by side: compile each once, then time them in turns and keep the minima.

A machine's speed drifts over a run, so programs that are compared are timed in one run, in rounds:
in each, every program runs once, in an order shuffled anew, and its least time counts. What
cannot run says so in its row; no row is left out.

A CPU runs them in the caller's thread. By default XLA does so with programs of fewer than 1000
operations, a loop's step counted once, and hands all others to a thread: that takes 35 us where a
core has to wake, and tells nothing of the program.
"""

from __future__ import annotations

import dataclasses
import importlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

jax.config.update("jax_cpu_enable_async_dispatch", False)  # read when JAX starts its CPU

MEMORY_LIMIT = 8e9
"""Programs that ask for more temporary bytes than this are compiled, and not run."""

SETUP_LIMIT = 30.0
"""Once a program of a sweep took longer to compile, larger ones of its kind are not tried."""

TIME_BUDGET = 4.0
"""Seconds that a program may run in all, after its first three rounds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One thing to measure, `function(*arguments)` under `jax.jit`, and its place in the tables.

    Programs of one `name` and `group` are a sweep over their `size`, in increasing order.
    `make` gives a new function at each call; it raises `UnavailableError` where a peer is missing.
    Those of one `group` and `answer` must give the same; `answer` is 0 where size does not matter.
    """

    name: str
    make: Callable[[], Callable[..., Any]]
    arguments: tuple[Any, ...]
    group: str = ""
    size: int = 0
    answer: int = 0


@dataclasses.dataclass(kw_only=True)
class Row:
    """What was measured of a program; `None` where it could not be, and then `note` says why."""

    name: str
    group: str
    size: int
    seconds: float | None = None
    temp_bytes: int | None = None
    lower_seconds: float | None = None
    compile_seconds: float | None = None
    error: float | None = None
    """Largest difference from the first program that must give the same, relative to its values."""
    note: str = ""

    @property
    def setup_seconds(self) -> float | None:
        """Tracing, our passes, lowering and XLA's compilation."""
        if self.lower_seconds is None or self.compile_seconds is None:
            return None
        return self.lower_seconds + self.compile_seconds


class UnavailableError(Exception):
    """A program that cannot be made here; the message goes into its row."""


def optional(module: str, install: str) -> Any:
    """Import `module`, or say in the rows that need it why that does not work here."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise UnavailableError(f"not installed: pip install {install}") from None
    except ImportError as error:
        reason = str(error).split(" (")[0]
        raise UnavailableError(f"does not work with JAX {jax.__version__}: {reason}") from None


def optimizer() -> Any:
    """`jaxpr_opt.optimize`."""
    return optional("jaxpr_opt", "jaxpr-opt").optimize


def measure(
    programs: Sequence[Program],
    *,
    rounds: int = 20,
    setups: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Compile `programs`, then time them in `rounds`; a row for each, in their order.

    Compilation is timed `setups` times, from cleared caches, and the least counts; once if slow.
    """
    rows = [Row(name=p.name, group=p.group, size=p.size) for p in programs]
    runs: list[tuple[Program, Row, Callable[[], Any]]] = []
    for program, row in zip(programs, rows, strict=True):
        progress(f"compiling {program.group} {program.size or ''} {program.name}")
        reason = _too_slow_to_set_up(row, rows)
        run = _set_up(program, row, setups) if reason is None else None
        if reason is not None:
            row.note = reason
        if run is not None:
            runs.append((program, row, run))
    progress("checking")
    _compare_results(runs)
    _run_in_turns([(row, run) for _, row, run in runs], rounds, progress)
    return rows


def _too_slow_to_set_up(row: Row, rows: Sequence[Row]) -> str | None:
    """Why a program of a sweep is not tried, given its smaller siblings."""
    for other in rows:
        setup = other.setup_seconds
        same = (other.name, other.group) == (row.name, row.group) and other.size < row.size
        if same and setup is not None and setup > SETUP_LIMIT:
            return f"skipped: compiling took {setup:.0f} s at {other.size}"
    return None


def _set_up(program: Program, row: Row, setups: int) -> Callable[[], Any] | None:
    """Compile `program`, filling in `row`; a call that runs it, unless it cannot run."""
    for _ in range(setups):
        jax.clear_caches()
        try:
            start = time.perf_counter()
            function = program.make()
            jitted = function if hasattr(function, "lower") else jax.jit(function)
            lowered = jitted.lower(*program.arguments)
            middle = time.perf_counter()
            compiled = lowered.compile()
            end = time.perf_counter()
        except UnavailableError as reason:
            row.note = str(reason)
            return None
        except Exception as error:  # noqa: BLE001  a peer's failure is a result, and its row says so
            row.note = f"failed: {type(error).__name__}: {error}".splitlines()[0][:120]
            return None
        if row.setup_seconds is None or end - start < row.setup_seconds:
            row.lower_seconds, row.compile_seconds = middle - start, end - middle
        if end - start > SETUP_LIMIT / 6:
            break
    row.temp_bytes = compiled.memory_analysis().temp_size_in_bytes
    if row.temp_bytes > MEMORY_LIMIT:
        row.note = f"not run: needs {row.temp_bytes / 1e9:.0f} GB"
        return None
    return lambda: jax.block_until_ready(compiled(*program.arguments))


def _compare_results(runs: Sequence[tuple[Program, Row, Callable[[], Any]]]) -> None:
    """Run everything once: a benchmark of programs that disagree would mean nothing."""
    expected: dict[tuple[str, int], list[np.ndarray[Any, Any]]] = {}
    for program, row, run in runs:
        made = (x for x in jax.tree.leaves(run()) if x.dtype != jax.dtypes.float0)
        leaves = [np.asarray(x, np.float64) for x in made]
        first = expected.setdefault((program.group, program.answer), leaves)
        scale = max((np.max(np.abs(x), initial=0.0) for x in first), default=0.0) or 1.0
        row.error = max(
            (
                float(np.max(np.abs(x - y), initial=0.0) / scale)
                for x, y in zip(leaves, first, strict=True)
            ),
            default=0.0,
        )


def _run_in_turns(
    runs: Sequence[tuple[Row, Callable[[], Any]]], rounds: int, progress: Callable[[str], None]
) -> None:
    spent = dict.fromkeys(range(len(runs)), 0.0)
    shuffle = random.Random(0).shuffle
    for turn in range(rounds):
        progress(f"round {turn + 1} of {rounds}")
        order = [i for i, seconds in spent.items() if turn < 3 or seconds < TIME_BUDGET]
        shuffle(order)
        for i in order:
            row, run = runs[i]
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            spent[i] += seconds
            row.seconds = seconds if row.seconds is None else min(row.seconds, seconds)


def growth(rows: Sequence[Row], of: Callable[[Row], float | None]) -> float | None:
    """The exponent with which `of(row)` grows with the size, over the last doublings of a sweep.

    The last three or more are fitted, from the largest size down; `None` where fewer were measured.
    """
    points = sorted((row.size, value) for row in rows if (value := of(row)))
    starts = [size for size, _ in points if size * 8 <= points[-1][0]]
    if not starts or not starts[-1]:
        return None
    sizes, values = np.log([point for point in points if point[0] >= starts[-1]]).T
    return float(np.polyfit(sizes, values, 1)[0])
