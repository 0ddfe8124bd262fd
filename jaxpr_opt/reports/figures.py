"""A table of figures before and after, with which diffs and reports end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from jaxpr_opt.insight.summary import Summary
from jaxpr_opt.sizes import Size, binary_text, bytes_text

UNKNOWN = "unknown"
SAME = "about the same"
NOTABLE = 1.01
"""A smaller ratio is not worth a number."""


def number_text(value: float) -> str:
    """`33,700`; from a million on three digits and the letter for the size."""
    for limit, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {letter}"
    return f"{value:,.0f}"


def limit_text(limit: float) -> str:
    """A number of bytes as its author wrote it: `4 MiB`."""
    return str(limit) if isinstance(limit, Size) and limit.written else bytes_text(limit)


def beside_limit(value: float, limit: float) -> str:
    """Bytes to be compared with a limit, also in its units: `8.39 MB (8 MiB)`."""
    decimal = bytes_text(value)
    in_binary = isinstance(limit, Size) and limit.is_binary
    return f"{decimal} ({binary_text(value)})" if in_binary else decimal


def formula_text(nbytes: int, lengths: Sequence[int | None]) -> str:
    """Bytes that are made in every step of some loops, the outermost first: `256 x 4.19 MB`; `n x`
    where nobody knows how often.
    """
    return " x ".join(["n" if n is None else str(n) for n in lengths] + [bytes_text(nbytes)])


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
        ratio = max(self.before / self.after, self.after / self.before)
        if ratio < NOTABLE:
            return SAME
        return f"÷ {factor(ratio)}" if self.after < self.before else f"x {factor(ratio)}"

    def columns(self) -> tuple[str, str, str, str]:
        before, after = (UNKNOWN if v is None else self.write(v) for v in (self.before, self.after))
        return self.label, before, after, self.change


def factor(ratio: float) -> str:
    """`512`, `3.1`, `1.04`."""
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}" if ratio >= 1.1 else f"{ratio:.2f}"


LABELS: dict[str, tuple[str, Callable[[float], str]]] = {
    "equations": ("equations", number_text),
    "residual_bytes": ("kept for the gradient", bytes_text),
    "peak_bytes": ("peak memory, estimated", bytes_text),
    "flops": ("FLOPs", number_text),
}
"""How the fields of `Summary` are presented."""


def figures(before: Summary, after: Summary) -> list[Figure]:
    """The estimated costs of two programs."""
    return [
        Figure(name, label, getattr(before, name), getattr(after, name), write)
        for name, (label, write) in LABELS.items()
    ]


def table(rows: Sequence[Figure], titles: tuple[str, str] = ("before", "after")) -> Table:
    """The figures as a table for people; what is unknown of both has no row."""
    shown = Table(box=None, pad_edge=False, header_style="dim")
    shown.add_column("")
    for title in (*titles, ""):
        shown.add_column(title, justify="right")
    for row in rows:
        if row.before is not None or row.after is not None:
            shown.add_row(*row.columns())
    return shown


def to_dict(rows: Sequence[Figure]) -> dict[str, dict[str, Any]]:
    """The figures for machines: plain numbers, bytes and seconds; null is unknown."""
    return {row.key: {"before": row.before, "after": row.after} for row in rows}


assert {field.name for field in dataclasses.fields(Summary)} == LABELS.keys(), (
    "a figure has no label"
)
