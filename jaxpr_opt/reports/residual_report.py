"""The report of `residuals`, for people and for machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from jaxpr_opt.frames import Frame, frame_text
from jaxpr_opt.printing import plain
from jaxpr_opt.reports.figures import factor
from jaxpr_opt.reports.residual_rows import Residual
from jaxpr_opt.sizes import bytes_text

MAX_ROWS = 12
"""Rows that are shown; the rest are counted."""
MAX_PLACES = 3
"""Places that read a value; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """What a gradient keeps; `print` it, with rich or without, or ask for `to_dict()`."""

    name: str
    kept: tuple[Residual, ...]
    """The largest first."""
    instead: tuple[Residual, ...]
    """What only the optimised program keeps."""
    parameter_bytes: int | None
    """Of the arguments it is differentiated with respect to; None where the program decides."""
    input_bytes: int
    """Of all arguments."""
    residual_bytes: int
    """What the gradient keeps in memory of its own: neither arguments nor captured arrays, and
    nothing that is never read; reports, lint and budgets mean this figure."""
    optimized_residual_bytes: int
    """The same of the optimised program."""

    @property
    def bytes(self) -> int:
        """Of everything that `jax.vjp` hands over from the forward to the backward pass."""
        return sum(each.bytes for each in self.kept)

    @property
    def argument_bytes(self) -> int:
        """Of the arguments among it, which take no memory of their own."""
        return sum(each.bytes for each in self.kept if each.kind == "argument")

    @property
    def unread_bytes(self) -> int:
        """Of what is handed over and never read: gone, where one `jit` has both halves in it."""
        return sum(each.bytes for each in self.kept if each.is_unread)

    @property
    def optimized_bytes(self) -> int:
        """Of everything that the optimised program keeps."""
        return sum(each.optimized_bytes for each in (*self.kept, *self.instead))

    def to_dict(self) -> dict[str, Any]:
        """The whole report, for `json.dumps`."""
        return {
            "function": self.name,
            "residual_bytes": self.residual_bytes,
            "optimized_residual_bytes": self.optimized_residual_bytes,
            "bytes": self.bytes,
            "argument_bytes": self.argument_bytes,
            "unread_bytes": self.unread_bytes,
            "optimized_bytes": self.optimized_bytes,
            "parameter_bytes": self.parameter_bytes,
            "input_bytes": self.input_bytes,
            "kept": [each.to_dict() for each in self.kept],
            "instead": [each.to_dict() for each in self.instead],
        }

    def __str__(self) -> str:
        return plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.kept:
            yield Text(f"{self.name} keeps nothing for a backward pass", style="bold")
            return
        yield Text(f"{self.name} keeps {bytes_text(self.residual_bytes)}", style="bold")
        yield self._totals()
        yield Text()
        yield _listed(self.kept)
        if self.instead:
            yield Text("\noptimised, it keeps instead", style="bold")
            yield _listed(self.instead)

    def _totals(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column()
        table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim")
        for label, nbytes, remark in self._figures():
            table.add_row(f"  {label}", bytes_text(nbytes), remark)
        return table

    def _figures(self) -> Iterator[tuple[str, int, str]]:
        if self.optimized_residual_bytes < self.residual_bytes:
            yield "when optimised", self.optimized_residual_bytes, ""
        for label, nbytes in (("parameters", self.parameter_bytes), ("inputs", self.input_bytes)):
            if nbytes:
                yield label, nbytes, f"it keeps {factor(self.residual_bytes / nbytes)} times that"
        if self.argument_bytes:
            yield "arguments", self.argument_bytes, "kept too, in memory anyway"
        if self.unread_bytes:
            yield "read by nothing", self.unread_bytes, "dropped when one jit holds both passes"


def _listed(rows: tuple[Residual, ...]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for row in rows[:MAX_ROWS]:
        table.add_row(bytes_text(row.bytes), _described(row))
    if rest := rows[MAX_ROWS:]:
        values = sum(row.count for row in rest)
        noun = "value" if values == 1 else "values"
        table.add_row(bytes_text(sum(row.bytes for row in rest)), f"in {values} smaller {noun}")
    return table


def _described(row: Residual) -> Text:
    text = Text(f"{row.name} ", "bold").append(row.shape, "not bold")
    if row.formula:
        text.append(f" = {row.formula}", "not bold dim")
    if row.frame is not None:
        text.append(f"\nmade at {frame_text(row.frame)}", "not bold")
    if row.needed_by:
        text.append(f"\nread by the transpose of {_readers(row)}", "not bold")
    if (verdict := _verdict(row)) is not None:
        text.append("\n").append_text(verdict)
    return text


def _readers(row: Residual) -> str:
    """`mul (line 49), dot_general (other.py:7 in f)`: a line of the file the value is made in."""
    places: dict[str, dict[str, None]] = {}
    for need in row.needed_by:
        places.setdefault(_place(need.frame, row.frame), {})[need.op] = None
    readers = [", ".join(ops) + (f" ({where})" if where else "") for where, ops in places.items()]
    more = f" and at {len(readers) - MAX_PLACES} more" if len(readers) > MAX_PLACES else ""
    return ", ".join(readers[:MAX_PLACES]) + more


def _place(frame: Frame | None, near: Frame | None) -> str:
    if frame is None:
        return ""
    return f"line {frame[1]}" if near is not None and frame[0] == near[0] else frame_text(frame)


def _verdict(row: Residual) -> Text | None:
    if row.is_unread:
        return Text("read by nothing", "not bold yellow")
    if row.optimized_bytes < row.bytes:
        left = bytes_text(row.optimized_bytes) if row.optimized_bytes else "gone"
        by = f" ({', '.join(row.passes)})" if row.passes else ""
        return Text(f"optimised: {left}{by}", "not bold green")
    if row.cheap:
        return Text(f"cheap to recompute, by jax.checkpoint: {row.cheap}", "not bold yellow")
    return None
