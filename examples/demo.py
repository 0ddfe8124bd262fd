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
from rich.table import Table

import jaxpr_opt
from bench.harness import Program, Row, measure
from examples import bounded_while

BOUNDS = [8, 64, 256]


def gradient(bound: int) -> Callable[..., Any]:
    """The gradient of the nested loop with respect to `x`."""
    return jax.grad(partial(bounded_while.loss, bound=bound), argnums=1)


def main() -> None:
    """Show the difference, the explanation, and the cost."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    arguments = bounded_while.arguments()
    report = jaxpr_opt.explain(gradient(4), *arguments)
    console.rule("The program, before (-) and after (+): bound 4")
    console.print(report.diff)
    console.rule("What each pass did, and where")
    console.print(report)
    console.rule("What it costs: 8 steps taken, MLP of width 1024, gradient")
    console.print(cost_table(arguments, console))


def cost_table(arguments: tuple[Any, ...], console: Console) -> Table:
    """Time, temporary memory and time to compile, before and after."""
    programs = [
        Program(name=name, make=partial(make, bound), arguments=arguments, size=bound)
        for bound in BOUNDS
        for name, make in (
            ("before", gradient),
            ("after", lambda b: jaxpr_opt.optimize(gradient(b))),
        )
    ]
    with console.status("") as status:
        rows = measure(programs, rounds=5, progress=status.update)
    table = Table("bound", "time", "", "temporary memory", "", "trace and compile", "")
    table.columns[0].justify = "right"
    for before, after in zip(rows[::2], rows[1::2], strict=True):
        table.add_row(str(before.size), *(cell for pair in _cells(before, after) for cell in pair))
    return table


def _cells(before: Row, after: Row) -> list[tuple[str, str]]:
    return [
        _change(before.seconds, after.seconds, 1e3, "ms"),
        _change(before.temp_bytes, after.temp_bytes, 1e-6, "MB"),
        _change(before.setup_seconds, after.setup_seconds, 1, "s"),
    ]


def _change(old: float | None, new: float | None, scale: float, unit: str) -> tuple[str, str]:
    """`old -> new`, and by how much that is less or more."""
    if old is None or new is None:
        return "not measured", ""
    ratio = f"[green]÷ {old / new:,.1f}[/]" if new <= old else f"[red]× {new / old:,.1f}[/]"
    return f"{old * scale:,.4g} -> {new * scale:,.4g} {unit}", ratio


if __name__ == "__main__":
    main()
