"""The table at the end of a run: one line for each function that was compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from jaxpr_opt.frames import Frame, frame_text
from jaxpr_opt.lint.formats import text
from jaxpr_opt.lint.result import plural
from jaxpr_opt.reports.figures import bytes_text, seconds_text
from jaxpr_opt.run.looked import Looked
from jaxpr_opt.run.recorder import Recorder

TOLD = 3
"""Findings that are told in full; the rest are counted."""
MOST = 20
"""Lines of the table; the rest are counted."""
NONE = "-"
TITLES = ("compiled", "set-up", "memory", "optimised", "for grad", "findings")
"""Of the columns: `memory` is what XLA sets aside; `for grad`, what the gradient keeps."""


class Shown:
    """What a run comes to; print it.

    `won`: of an optimised run, what it has won.
    """

    def __init__(
        self, found: Sequence[Looked], recorder: Recorder, won: RenderableType | None = None
    ) -> None:
        self.found, self.recorder, self.won = found, recorder, won

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.found:
            yield table(self.found[:MOST]) if self.won is None else self.won
            if rest := len(self.found[MOST:]) * (self.won is None):
                yield Text(f"and {plural(rest, 'smaller function')}: --html shows all", "dim")
        yield from self._others()
        if self.won is not None:
            return
        yield from self._findings()
        yield from self._hint()

    def _others(self) -> Iterator[RenderableType]:
        """What is not in the table."""
        libraries = self.recorder.libraries
        if not self.found:
            which = "" if self.recorder.only == "*" else f" that matches {self.recorder.only}"
            yield Text(f"No function of yours{which} was compiled.", "bold")
            if libraries["jax"]:
                yield Text("JAX ran its operations one by one: put jax.jit on what runs often.")
        elif libraries:
            names = ", ".join(f"{name} {count}" for name, count in libraries.most_common(3))
            time = seconds_text(self.recorder.library_seconds)
            total = plural(sum(libraries.values()), "program")
            yield Text(f"and {total} of libraries ({names}), set up in {time}: --all", "dim")

    def _findings(self) -> Iterator[RenderableType]:
        found = [f for each in self.found for f in each.checked.findings if f.severity != "note"]
        if found:
            yield Text()
            yield text.findings(found[:TOLD])
        if rest := found[TOLD:]:
            yield Text(f"{plural(len(rest), 'more finding')}: --html page.html shows all.", "dim")
        for each in self.found:
            for trouble in filter(None, (each.checked.error, each.trouble)):
                yield Text(f"{each.name} was not looked at: {trouble}", "yellow")

    def _hint(self) -> Iterator[RenderableType]:
        saved = sum(each.saved_bytes for each in self.found)
        total = sum(each.largest.temp_bytes or 0 for each in self.found)
        if saved > total / 100:
            yield Text("with --optimize, all of them run optimised", "dim")


def table(found: Sequence[Looked]) -> Table:
    """One line for each function."""
    shown = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    shown.add_column("program", overflow="fold")
    for title in TITLES:
        shown.add_column(title, justify="right", no_wrap=True)
    for each in found:
        shown.add_row(Text(each.name, "bold").append(short(each.place), "not bold dim"), *row(each))
    return shown


def short(place: Frame | None) -> str:
    """` train.py:31`, without its folder."""
    return "" if place is None else f" {frame_text((*place[:2], '')).rpartition('/')[2]}"


def row(each: Looked) -> tuple[str, ...]:
    """The figures of a function as words."""
    before, after = each.largest.temp_bytes, each.optimized_bytes
    findings = sum(f.severity != "note" for f in each.checked.findings)
    kept = each.kept_bytes
    return (
        f"{each.times} times" if each.times > 1 else "once",
        seconds_text(each.seconds),
        NONE if before is None else bytes_text(before),
        NONE if after is None else change(before, after),
        NONE if kept is None else bytes_text(kept),
        str(findings) if findings else NONE,
    )


def change(before: int | None, after: int) -> str:
    """`12 MB`, or `same`."""
    if before is not None and abs(before - after) * 100 <= before:
        return "same"
    return bytes_text(after)
