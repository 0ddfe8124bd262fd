"""Growth by shapes beside growth as measured: the exponents of every program of the benchmarks.

The check looks at sizes where loops dominate; that costs nothing, as it compiles nothing and does
not unroll loops.  What is expected is what the program needs in the hands of XLA.  Measured are the
times and temporary bytes that the other benchmarks have saved, at sizes that fit a machine.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from bench import bounded_while, carried_arrays, harness, ragged_rnn, report
from bench.sweep import DOCS, Options
from examples import bounded_while as loops
from examples import ragged_rnn as rnn
from jaxpr_opt.insight.growth import Growth, growth
from jaxpr_opt.ir.devices import fence, is_quick_if_small
from jaxpr_opt.reports import observe
from jaxpr_opt.targets import arguments_of

PLAIN, OURS = "plain JAX", "jaxpr-opt"
SIZES = (2**12, 2**13, 2**14)
UNROLLED = (8, 16, 32)
"""The program is as long as the size."""
BOUNDS = (64, 128, 256)
TOLERANCE = 0.1


class Powers(NamedTuple):
    """Exponents of the work, of the residuals, and of the peak memory, arguments included."""

    work: float
    residuals: float
    peak: float
    iteration: float | None = None
    """Of the work of one iteration, where there is a `while`: of that, `work` has one."""


LINEAR, QUADRATIC = Powers(1, 1, 1), Powers(2, 2, 2)
COPIES = Powers(2, 1, 1)
"""Whole arrays are touched in every step, none is stored."""
FORWARD, FORWARD_COPIES = Powers(1, 0, 1), Powers(2, 0, 1)
"""There is no gradient."""
STEPS_TAKEN = Powers(0, 1, 0, iteration=0)
"""The loop ends when it is done; of each step but the first ones its input, a small vector, has its
place.  The peak is what the first ones store.
"""

ORDERED, ORDERED_FORWARD = (LINEAR, FORWARD) if fence() else (COPIES, FORWARD_COPIES)
"""With what orders reads and writes, where XLA heeds it."""

LAST_EVENT = Powers(1, 1, 1, iteration=0)
"""The loop over rare events stacks nothing else, and ends after the last one."""

LAST_LOSS = Powers(1, 1, 1, iteration=1 if is_quick_if_small() else 0)
"""Where a small loop is one function, its steps are no branches."""

IN_TURN = Powers(1, 0, 1, iteration=1 if is_quick_if_small() else None)
"""Where XLA copies for branches, they are loops of at most one step; nothing is stored for them."""

FLIPS = Powers(1, 1, 1, iteration=0 if is_quick_if_small() else None)
"""Where a small loop is one function, the loop back begins where a spin was flipped."""

LONGEST_ROW = Powers(1, 1, 1, iteration=None if is_quick_if_small() else 0)
"""Where a small loop is one function, it ends with the longest row."""

EXPECTED: dict[str, tuple[Powers, Powers]] = {
    "slices": (COPIES, LINEAR),
    "slices, written by where": (QUADRATIC, LINEAR),
    "slices, write or not": (COPIES, Powers(1, 1, 1, iteration=0)),
    "slices, ragged batch": (QUADRATIC, LONGEST_ROW),
    "slices, read whole": (QUADRATIC, COPIES),
    "recurrence": (COPIES, LINEAR),
    "nested, elements": (COPIES, LINEAR),
    "nested, one index": (COPIES, LINEAR),
    "nested, rows": (LINEAR, LINEAR),
    "vmap of scan and cond": (FORWARD_COPIES, FORWARD),
    "vmap of while": (Powers(1, 0, 1, iteration=1), Powers(1, 0, 1, iteration=0)),
    "edit distance": (FORWARD, FORWARD),
    "soft alignment": (COPIES, LINEAR),
    "soft alignment, one loop": (COPIES, LINEAR),
    "paths of particles": (FORWARD_COPIES, FORWARD),
    "trajectories": (QUADRATIC, Powers(1, 1, 1, iteration=0)),
    "replay": (COPIES, ORDERED),
    "KV cache, decoding": (FORWARD_COPIES, FORWARD_COPIES),
    "KV cache, gradient": (QUADRATIC, COPIES),
    "embeddings": (LINEAR, LINEAR),
    "embeddings, nested": (COPIES, LINEAR),
    "embeddings, some steps": (COPIES, LAST_EVENT),
    "embeddings, trained": (FORWARD_COPIES, FORWARD),
    "tables, one row a step": (COPIES, LINEAR),
    "accounts": (COPIES, IN_TURN),
    "spin flips": (COPIES, FLIPS),
    "columns of a state": (COPIES, LINEAR),
    "rows of all pairs": (Powers(2, 1, 2), LINEAR),
    "rows of a kernel": (QUADRATIC, LINEAR),
    "ratings of pairs": (Powers(2, 1, 2), LINEAR),
    "losses of few steps": (LINEAR, Powers(1, 1, 1, iteration=0)),
    "experts": (LINEAR, Powers(1, 1, 1, iteration=0)),
    "sent tokens": (QUADRATIC, LINEAR),
    "fractional order": (QUADRATIC, COPIES),
    "phases": (LINEAR, LINEAR),
    "phases that come round": (LINEAR, LINEAR),
    "padded sequences": (LINEAR, Powers(1, 1, 1, iteration=1)),
    "padded losses": (LINEAR, LAST_LOSS),
    "resets of a batch": (FORWARD, FORWARD),
    "parameters by layer": (LINEAR, LINEAR),
    "shifts (jax#17845)": (FORWARD_COPIES, ORDERED_FORWARD),
    "shifts, gradient (jax#17640)": (COPIES, ORDERED),
    "multiplied in place": (QUADRATIC, LINEAR),
    "delay equation": (FORWARD, FORWARD),
    "delay equation, forward": (FORWARD, FORWARD),
    "many carries (jax#40150)": (COPIES, LINEAR),
    "bounded while, nested": (Powers(1.15, 1, 1), STEPS_TAKEN),
    "bounded while, single": (LINEAR, STEPS_TAKEN),
    "ragged RNN": (LINEAR, Powers(1, 1, 1, iteration=0)),
}
"""What plain JAX needs, and what the optimised program does."""

NOTES = {
    "vmap of while": "the number of iterations is unknown, so the exponent is that of one; this"
    " loop takes n. The linear term is the copy of an argument",
    "KV cache": "the product with the cache is quadratic; up to 1024 rows the products with the"
    " weights, which are linear, take as long",
    "delay equation": "the number of steps is fixed, and n is the delay. Plain, a step is linear;"
    " optimised, only the copy of an argument is",
    "slices, read whole": "a dot product is quadratic; the linear part of a step takes time, too",
    "many carries": "the program has n nodes, and each adds a vector of n elements; at 32 nodes"
    " the time is that of starting operations",
    "bounded while, nested": "plain, each of the log n levels copies the residuals of those inside:"
    " n log n is n^1.15 here",
    "bounded while": "n is the bound, and eight steps are taken; optimised, they are a `while`,"
    " whose exponent is that of one iteration. The first steps store; inputs of later ones show at"
    " larger n",
    "ragged RNN": "n is the number of time slots, and eight are in use",
    "padded": "n is the number of time slots, and sixteen are in use; once, all rows are looked at",
}
"""Where time is not what the work is, why."""


Maker = Callable[[], Callable[..., Any]]
Sized = tuple[Callable[..., Any], tuple[Any, ...]]
"""A program, and its arguments at a size."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, as JAX makes it or optimised, with its arguments at some sizes."""

    group: str
    name: str
    at: dict[int, Callable[[], Sized]]
    measured: tuple[str, str, str]
    """The benchmark, its group, its name for the program."""

    @property
    def expected(self) -> Powers:
        """What the check has to find."""
        return EXPECTED[self.group][self.name == OURS]

    def found(self) -> Powers:
        """What the check finds."""
        sized = {n: make() for n, make in self.at.items()}
        return powers(growth({n: observe.as_it_is(*each, {})[0] for n, each in sized.items()}))


def powers(found: Growth) -> Powers:
    """The exponents."""
    work, residuals, peak = (found[m] for m in ("work", "residual_bytes", "peak_bytes"))
    return Powers(work.exponent, residuals.exponent, peak.exponent, work.iteration)


def agree(expected: Powers, found: Powers) -> bool:
    """Whether no exponent is off by more than a tenth."""
    pairs = zip(expected, found, strict=True)
    return all(
        a is b is None or (a is not None and b is not None and abs(a - b) <= TOLERANCE)
        for a, b in pairs
    )


def cases() -> Iterator[Case]:
    """Every program of the benchmarks, plain and optimised."""
    for family in carried_arrays.FAMILIES:
        made = dict(family.candidates())
        unrolled = family.name.startswith("many carries")
        for name in (PLAIN, OURS):
            sizes = UNROLLED if unrolled else SIZES
            at = {n: _sized(made[name], family.arguments, n) for n in sizes}
            yield Case(family.name, name, at, ("carried_arrays", family.name, name))
    for form in bounded_while.LOOPS:
        for name in (PLAIN, OURS):
            named = f"{name}, {form}"
            swept = {
                n: make for found, n, make in bounded_while.candidates(BOUNDS) if found == named
            }
            at = {n: _sized(make, _batch, 256) for n, make in swept.items()}
            yield Case(f"bounded while, {form}", name, at, ("bounded_while", "batch 256", named))
    for name, make in ragged_rnn.candidates():
        if name in (PLAIN, OURS):
            at = {n: _sized(make, _slots, n) for n in SIZES}
            yield Case("ragged RNN", name, at, ("ragged_rnn", "", name))


def _sized(
    make: Maker, arguments: Callable[[int], tuple[Any, ...]], size: int
) -> Callable[[], Sized]:
    """A program and the types of its arguments, once somebody asks."""
    return lambda: (make(), arguments_of(arguments, "arguments", size)[0])


def _batch(size: int) -> tuple[Any, ...]:
    return loops.arguments(batch=size, steps=bounded_while.STEPS)


def _slots(size: int) -> tuple[Any, ...]:
    return rnn.arguments(time=size)


HEADINGS = (
    "program", "", "expected", "work", "residuals", "peak memory", "time", "temporaries",
)  # fmt: skip


def run(options: Options, console: Console) -> None:
    """Show the table, and on request publish it."""
    table = Table(title="growth: found by shapes, and measured", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=True)
    rows, last = _measured(), ""
    for case in cases():
        if options.only not in f"{case.group}: {case.name}":
            continue
        with console.status(f"growth: {case.group}"):
            found = case.found()
        verdict = _expected(case.expected) + ("" if agree(case.expected, found) else ": NOT FOUND")
        group, last = "" if case.group == last else case.group, case.group
        table.add_row(group, case.name, verdict, *_cells(found), *rows.get(case.measured, ()))
    console.print(table)
    if options.publish:
        _publish(table)


def _expected(powers: Powers) -> str:
    """The exponents of the work, the residuals, the peak, and an iteration."""
    return ", ".join(f"{power:g}" for power in powers if power is not None)


def _cells(found: Powers) -> list[str]:
    work = _power(found.work)
    if found.iteration is not None:
        work += f", an iteration {_power(found.iteration)}"
    return [work, _power(found.residuals), _power(found.peak)]


def _power(exponent: float | None) -> str:
    return "-" if exponent is None else f"n^{abs(round(exponent, 2)):.2f}"


def _measured() -> dict[tuple[str, str, str], tuple[str, str]]:
    """The exponents of time and temporary bytes in the saved results, where there are any."""
    found: dict[tuple[str, str, str], list[harness.Row]] = {}
    for name in ("carried_arrays", "bounded_while", "ragged_rnn"):
        path = report.RESULTS / f"{name}-jax-{jax.__version__}.json"
        for saved in json.loads(path.read_text())["rows"] if path.exists() else ():
            row = harness.Row(**saved)
            found.setdefault((name, row.group, row.name), []).append(row)
    return {
        key: (
            _power(harness.growth(rows, lambda row: row.seconds)),
            _power(harness.growth(rows, lambda row: row.temp_bytes)),
        )
        for key, rows in found.items()
    }


def _publish(table: Table) -> None:
    table.box, table.title = box.MARKDOWN, None
    with (DOCS / "growth.md").open("w") as file:
        file.write(f"# Growth, found by shapes\n\n{INTRODUCTION}\n\n")
        Console(file=file, width=240).print(table)
        file.write("\nWhere the exponents of time and work differ:\n\n")
        file.writelines(f"- {group}: {note}.\n" for group, note in NOTES.items())


INTRODUCTION = f"""\
This page shows that the exponents of growth that `jaxpr-opt lint --scale`, `assert_growth` and
`jaxpr_opt.growth` find from shapes alone, without compiling or running, agree with measured time
and memory. It lists the programs of the benchmarks, at sizes from {SIZES[0]} to {SIZES[-1]}, beside
the measured exponents (JAX {jax.__version__}) of time and of XLA's temporary bytes, which leave out
the arguments. Made by `python -m bench growth --publish`.

*Expected* are the exponents of work, residuals, peak memory and, if the program has a `while`, the
work of one iteration, as XLA runs the program. All are found within {TOLERANCE}. Measured exponents
scatter around them: small sizes have overheads that do not grow, which makes linear programs look
better, and arrays that fit the cache, which makes quadratic programs look worse."""
