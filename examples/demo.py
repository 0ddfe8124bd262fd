"""`make demo`: the gradient of a bounded while loop (jax#8239), before and after `optimize`.

Prints the difference of the two programs for a bound of 4 steps, what each pass did and where in
`bounded_while.py`, and what both cost as the bound grows and the steps taken stay eight.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from rich.console import Console

import jaxpr_opt
from bench.harness import Program, measure
from examples import bounded_while
from jaxpr_opt.printing import show
from jaxpr_opt.reports.figures import Figure, seconds_text
from jaxpr_opt.reports.figures import table as figures_table
from jaxpr_opt.sizes import bytes_text

BOUNDS = [8, 64, 256]
COSTS = {
    "seconds": ("time", seconds_text),
    "temp_bytes": ("temporary memory", bytes_text),
    "setup_seconds": ("trace and compile", seconds_text),
}


def gradient(bound: int) -> Callable[..., Any]:
    """The gradient of the nested loop with respect to `x`."""
    return jax.grad(partial(bounded_while.loss, bound=bound), argnums=1)


def optimized(bound: int) -> Callable[..., Any]:
    """The same, optimised."""
    return jaxpr_opt.optimize(gradient(bound))


def main() -> None:
    """Show the difference, the explanation, and the cost."""
    console = Console()
    arguments = bounded_while.arguments()
    report = jaxpr_opt.explain(gradient(4), *arguments)
    console.rule("The program, before (-) and after (+): bound 4")
    show(report.diff, console)
    console.rule("What each pass did, and where")
    show(report, console)
    console.rule("What it costs: 8 steps taken, MLP of width 1024, gradient")
    show(figures_table(costs(arguments, console)), console)


def costs(arguments: tuple[Any, ...], console: Console) -> list[Figure]:
    """Time, temporary memory and time to compile at every bound."""
    programs = [
        Program(name=name, make=partial(make, bound), arguments=arguments, size=bound)
        for bound in BOUNDS
        for name, make in (("before", gradient), ("after", optimized))
    ]
    with console.status("") as status:
        rows = measure(programs, rounds=5, progress=status.update)
    return [
        Figure(field, f"{label}, bound {old.size}", getattr(old, field), getattr(new, field), write)
        for field, (label, write) in COSTS.items()
        for old, new in zip(rows[::2], rows[1::2], strict=True)
    ]


if __name__ == "__main__":
    main()
