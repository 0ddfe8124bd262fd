"""Two columns of figures, before and after: what a diff and a report end with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from jaxpr_opt.analysis.summary import Summary
from jaxpr_opt.diff import GraphDiff

UNKNOWN = "unknown"


def number_text(value: float) -> str:
    """Three significant digits, with a word for the size above a million."""
    for limit, word in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{word}"
    return f"{value:,.0f}"


def bytes_text(value: float) -> str:
    """`96 B`, `4.2 MB`; decimal units."""
    for limit, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= limit:
            return (
                f"{value / limit:.3g} {unit}"
                if abs(value) < 999.5 * limit
                else f"{value / limit:.0f} {unit}"
            )
    return f"{value:.0f} B"


def seconds_text(value: float) -> str:
    """`0.4 ms`, `12 ms`, `3.9 s`."""
    if value >= 1:
        return f"{value:.1f} s"
    return f"{value * 1e3:.0f} ms" if value >= 0.01 else f"{value * 1e3:.1f} ms"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: a quantity of two programs; None is unknown."""

    key: str
    """Its name in JSON."""
    label: str
    before: float | None
    after: float | None
    write: Callable[[float], str]

    @property
    def change(self) -> str:
        """`÷ 12` where it became smaller, `x 1.5` where it grew."""
        if self.before is None or self.after is None or self.before == self.after:
            return ""
        if not self.before or not self.after:
            return "gone" if self.before else "new"
        if self.after < self.before:
            return f"÷ {_factor(self.before / self.after)}"
        return f"x {_factor(self.after / self.before)}"

    def columns(self) -> tuple[str, str, str, str]:
        before, after = (UNKNOWN if v is None else self.write(v) for v in (self.before, self.after))
        return self.label, before, after, self.change


def _factor(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.2g}" if ratio >= 1.05 else f"{ratio:.3f}"


LABELS: dict[str, tuple[str, Callable[[float], str]]] = {
    "equations": ("equations", number_text),
    "residual_bytes": ("loop residuals", bytes_text),
    "peak_bytes": ("peak memory, estimated", bytes_text),
    "flops": ("FLOPs", number_text),
}
"""How the fields of `Summary` are presented."""


def figures(diff: GraphDiff) -> list[Figure]:
    """The estimated costs of the two programs of a diff."""
    return [
        Figure(name, label, getattr(diff.before, name), getattr(diff.after, name), write)
        for name, (label, write) in LABELS.items()
    ]


def table(rows: Sequence[Figure], titles: tuple[str, str] = ("before", "after")) -> Table:
    """The figures as a table for people."""
    shown = Table(box=None, pad_edge=False, header_style="dim")
    shown.add_column("")
    for title in (*titles, ""):
        shown.add_column(title, justify="right")
    for row in rows:
        shown.add_row(*row.columns())
    return shown


def to_dict(rows: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """The figures for machines: plain numbers, bytes and seconds; null is unknown."""
    return {row.key: {"before": row.before, "after": row.after} for row in rows}


assert {field.name for field in dataclasses.fields(Summary)} == LABELS.keys(), (
    "a figure has no label"
)
