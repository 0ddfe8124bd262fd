"""The table at the end of a run: a line for each compiled function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from jaxpr_opt.frames import Frame, frame_text
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.formats import text
from jaxpr_opt.printing import plural
from jaxpr_opt.reports.figures import seconds_text
from jaxpr_opt.run.recorder import Recorder
from jaxpr_opt.run.summaries import Summary
from jaxpr_opt.sizes import bytes_text

TOLD = 3
"""Findings that are shown in full; the rest are counted."""
MOST = 20
"""Lines of the table; the rest are counted."""
NONE = "-"
TITLES = ("compiled", "set-up", "memory", "optimised", "for grad", "findings")
"""Of the columns: `memory` is what XLA sets aside; `for grad`, what the gradient keeps."""


class Sheet(NamedTuple):
    """What a table says, on a terminal or on a page."""

    titles: tuple[str, ...]
    rows: Sequence[tuple[Summary, tuple[str, ...]]]


class Shown:
    """What a run comes to; print it."""

    def __init__(
        self, found: Sequence[Summary], recorder: Recorder, sheet: Sheet, is_optimized: bool
    ) -> None:
        self.found, self.recorder, self.sheet = found, recorder, sheet
        self.is_optimized = is_optimized

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.found:
            yield table(self.sheet)
            if rest := len(self.sheet.rows[MOST:]):
                yield Text(f"and {plural(rest, 'smaller function')}: --html shows all", "dim")
        yield from self._others()
        if not self.is_optimized:
            yield from self._findings()
        yield from self._troubles()
        if not self.is_optimized:
            yield from self._hint()

    def _others(self) -> Iterator[RenderableType]:
        """What is not in the table."""
        if self.found:
            if others := of_libraries(self.recorder):
                yield Text(f"and {others}; --all shows them", "dim")
            return
        which = "" if self.recorder.only == "*" else f" that matches {self.recorder.only}"
        yield Text(f"No function of yours{which} was compiled.", "bold")
        if self.recorder.libraries["jax"]:
            yield Text("JAX ran its operations one by one: put jax.jit on what runs often.")

    def _findings(self) -> Iterator[RenderableType]:
        found = findings(self.found)
        if found:
            yield Text()
            yield text.findings(found[:TOLD])
        if rest := found[TOLD:]:
            yield Text(f"{plural(len(rest), 'more finding')}: --html page.html shows all.", "dim")

    def _troubles(self) -> Iterator[RenderableType]:
        for each in self.found:
            for trouble in filter(None, (each.checked.error, each.trouble)):
                yield Text(f"{each.name} was not looked at: {trouble}", "yellow")

    def _hint(self) -> Iterator[RenderableType]:
        saved = sum(each.saved_bytes for each in self.found)
        total = sum(each.largest.temp_bytes or 0 for each in self.found)
        if saved > total / 100:
            yield Text("run --optimize measures what optimising saves", "dim")


def sheet(found: Sequence[Summary]) -> Sheet:
    """One row for each function."""
    return Sheet(TITLES, [(each, row(each)) for each in found])


def table(sheet: Sheet) -> Table:
    """The first rows, for a terminal."""
    shown = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    shown.add_column("program", overflow="fold")
    for title in sheet.titles:
        shown.add_column(title, justify="right", no_wrap=bool(title))
    for each, cells in sheet.rows[:MOST]:
        shown.add_row(Text(each.name, "bold").append(short(each.place), "not bold dim"), *cells)
    return shown


def findings(found: Iterable[Summary]) -> list[Finding]:
    """The findings of lint in them, but for notes."""
    return [f for each in found for f in each.checked.findings if f.severity != "note"]


def of_libraries(recorder: Recorder) -> str:
    """`4 programs of libraries (jax 4), set up in 330 ms`; empty if there are none."""
    if not (libraries := recorder.libraries):
        return ""
    names = ", ".join(f"{name} {count}" for name, count in libraries.most_common(3))
    total = plural(sum(libraries.values()), "program")
    return f"{total} of libraries ({names}), set up in {seconds_text(recorder.library_seconds)}"


def short(place: Frame | None) -> str:
    """` train.py:31`, without its folder."""
    return "" if place is None else f" {frame_text((*place[:2], '')).rpartition('/')[2]}"


def shown_path(path: Path) -> str:
    """A path, from the current folder where it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def row(each: Summary) -> tuple[str, ...]:
    """The figures of a function as words."""
    before, after = each.largest.temp_bytes, each.optimized_bytes
    count = len(findings([each]))
    kept = each.kept_bytes
    return (
        f"{each.times} times" if each.times > 1 else "once",
        seconds_text(each.seconds),
        NONE if before is None else bytes_text(before),
        NONE if after is None else change(before, after),
        NONE if kept is None else bytes_text(kept),
        str(count) if count else NONE,
    )


def change(before: int | None, after: int) -> str:
    """`12 MB`, or `same`."""
    if before is not None and abs(before - after) * 100 <= before:
        return "same"
    return bytes_text(after)
