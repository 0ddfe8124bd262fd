"""Tables for the terminal, JSON for machines, and the plot of the README."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from bench.harness import Row, growth

RESULTS = Path(__file__).parent / "results"
TOLERANCE = 1e-3
"""Results of one group that differ by more, relative to the largest value, are called wrong."""

MEASURES: dict[str, tuple[str, Callable[[Row], float | None]]] = {
    "time": ("ms", lambda row: None if row.seconds is None else row.seconds * 1e3),
    "temporary memory": (
        "MB",
        lambda row: None if row.temp_bytes is None else row.temp_bytes / 1e6,
    ),
    "trace, optimise, lower and compile": ("s", lambda row: row.setup_seconds),
}
SUMMARISED = [MEASURES["time"][1], MEASURES["temporary memory"][1]]


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
    }


def save(name: str, rows: Sequence[Row]) -> Path:
    """Write the rows as JSON, by name and version of JAX."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-jax-{jax.__version__}.json"
    data = {"environment": environment(), "rows": [dataclasses.asdict(row) for row in rows]}
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path


def markdown(path: Path, title: str, rows: Sequence[Row], reference: str = "") -> None:
    """Write for docs/ what `show` shows, after the summary if there is a `reference`."""
    where = ", ".join(f"{key} {value}" for key, value in environment().items())
    with path.open("w") as file:
        file.write(f"# {title}\n\nInterleaved minima of one run: {where}.\n\n")
        console = Console(file=file, width=240)
        if reference:
            console.print(_summary(rows, reference, box.MARKDOWN))
        show(console, title, rows, box.MARKDOWN)


def show_summary(console: Console, title: str, rows: Sequence[Row], reference: str) -> None:
    """One table: each program at the largest size of its group, and how it grows; then the notes.

    Times and memories are also given as multiples of those of the program called `reference`.
    """
    console.print(f"{title}: at the largest size, beside {reference}", style="italic")
    console.print(_summary(rows, reference, box.HEAVY_HEAD))
    for group, members in _by_group(rows).items():
        _notes(console, members, group)


def _summary(rows: Sequence[Row], reference: str, style: box.Box) -> Table:
    table = Table(box=style)
    table.add_column("group", no_wrap=True)
    table.add_column("program", no_wrap=True)
    for heading in ("n", "ms", "growth", "ratio", "MB", "growth", "ratio"):
        table.add_column(heading, justify="right")
    for group, members in _by_group(rows).items():
        largest = max(row.size for row in members)
        bases = [row for row in members if (row.name, row.size) == (reference, largest)]
        for i, (name, sweep) in enumerate(_by_name(members).items()):
            cells = [
                cell for of in SUMMARISED for cell in _in_proportion(sweep, largest, bases, of)
            ]
            table.add_row("" if i else group, name, "" if i else str(largest), *cells)
        table.add_section()
    return table


def _in_proportion(
    sweep: Sequence[Row], size: int, bases: Sequence[Row], of: Callable[[Row], float | None]
) -> tuple[str, str, str]:
    """A measure at one size, its growth, and its ratio to that of the base."""
    values = [(row, of(row)) for row in sweep if row.size == size]
    if not values or values[0][1] is None:
        return "[red]-[/]", "", ""
    (row, value), *_ = values
    exponent = growth(sweep, of)
    base = of(bases[0]) if bases else None
    return (
        _cell(row, value),
        "" if exponent is None else f"n^{exponent:.2f}",
        f"{value / base:.2f}" if base and value is not None else "",
    )


def show(
    console: Console, title: str, rows: Sequence[Row], style: box.Box = box.HEAVY_HEAD
) -> None:
    """A table for each group and measure: programs down, sizes across; then every note."""
    for group, members in _by_group(rows).items():
        for measure, (unit, of) in MEASURES.items():
            heading = (
                f"{title}, {group}: {measure} [{unit}]" if group else f"{title}: {measure} [{unit}]"
            )
            console.print(heading, style="italic", highlight=False, markup=False)
            console.print(_table(members, of, style))
        _notes(console, members)
        console.print()


def _table(rows: Sequence[Row], of: Callable[[Row], float | None], style: box.Box) -> Table:
    table = Table(box=style)
    sizes = sorted({row.size for row in rows})
    sweeps = len(sizes) > 1
    table.add_column("program", no_wrap=True)
    for size in sizes:
        table.add_column(str(size or ""), justify="right")
    if sweeps:
        table.add_column("growth", justify="right")
    for name, members in _by_name(rows).items():
        cells = {row.size: _cell(row, of(row)) for row in members}
        exponent = growth(members, of)
        last = ["" if exponent is None else f"n^{exponent:.2f}"] if sweeps else []
        table.add_row(name, *[cells.get(size, "") for size in sizes], *last)
    return table


def _cell(row: Row, value: float | None) -> str:
    if value is None:
        return "[red]-[/]"
    text = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    return f"[red]{text} wrong[/]" if is_wrong(row) else text


def is_wrong(row: Row) -> bool:
    """Whether the program computed something else than the first of its group."""
    return row.error is not None and not row.error <= TOLERANCE


def _by_group(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def _notes(console: Console, rows: Iterable[Row], group: str = "") -> None:
    places: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        note = f"result differs by {row.error:.1g}" if is_wrong(row) else row.note
        if note:
            places.setdefault((row.name, note), []).append(row.size)
    for (name, note), sizes in places.items():
        where = f"{name} at {', '.join(map(str, sizes))}" if any(sizes) else name
        where = f"{group}: {where}" if group else where
        console.print(f"- {where}: {note}", style="yellow", markup=False, highlight=False)


def _by_name(rows: Iterable[Row]) -> dict[str, list[Row]]:
    names: dict[str, list[Row]] = {}
    for row in rows:
        names.setdefault(row.name, []).append(row)
    return names


def plot(path: Path, rows: Sequence[Row], names: Sequence[str], size_label: str) -> None:
    """Time and memory of `names` against the size, a row of axes for each group."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "jaxpr-opt"  # the same file from the same figures
    import matplotlib.pyplot as plt

    groups = list(dict.fromkeys(row.group for row in rows))
    figure, axes = plt.subplots(
        len(groups), 2, figsize=(9, 3.2 * len(groups)), squeeze=False, layout="constrained"
    )
    for group, line in zip(groups, axes, strict=True):
        for (measure, (unit, of)), ax in zip(list(MEASURES.items())[:2], line, strict=True):
            for name in names:
                _plot_sweep(ax, name, [r for r in rows if (r.group, r.name) == (group, name)], of)
            ax.set(xscale="log", yscale="log", title=f"{group}: {measure} [{unit}]")
            ax.set_xscale("log", base=2)
            ax.set_xlabel(size_label)
            ax.grid(alpha=0.3)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _plot_sweep(ax: Any, name: str, rows: Sequence[Row], of: Callable[[Row], float | None]) -> None:
    points = sorted((row.size, value) for row in rows if (value := of(row)) is not None)
    if len(points) == 1 and not points[0][0]:
        ax.axhline(points[0][1], label=name, color="black", linestyle=":")
    elif points:
        ours = "jaxpr-opt" in name
        ax.plot(*zip(*points, strict=True), label=name, marker="o", markersize=3,
                linewidth=2.4 if ours else 1.2, zorder=3 if ours else 2)  # fmt: skip
