"""What the gradient keeps, as a table: from which line, how much, and for what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from jaxpr_opt.analysis.saved import saved
from jaxpr_opt.figures import bytes_text
from jaxpr_opt.frames import Frame
from jaxpr_opt.html.markup import Markup, element
from jaxpr_opt.html.places import frame_of, label, link, maker
from jaxpr_opt.html.prose import plural
from jaxpr_opt.ir import Graph
from jaxpr_opt.text_params import type_text

SHOWN = 12
"""Rows that are shown; the smaller ones are folded."""
READERS = 2
"""Readers of a value that are named."""

Key = tuple[Frame | None, str]
"""What identifies a value in two programs: its line and the type of one step's."""


@dataclass(slots=True)
class Row:
    """What one line makes of one type, and a backward pass needs."""

    label: str
    type: str
    frame: Frame | None
    lengths: tuple[int, ...] = ()
    before: int = 0
    after: int = 0
    readers: dict[tuple[str, Frame | None], None] = field(default_factory=dict)


def section(before: Graph, after: Graph, changed: bool) -> Markup | None:
    """The table; nothing for a program that differentiates nothing."""
    rows = sorted(_rows(before, after), key=lambda row: (-row.before, -row.after))
    if not rows:
        return None
    old, new = sum(row.before for row in rows), sum(row.after for row in rows)
    total = f"{bytes_text(old)} → {bytes_text(new)}" if changed and old != new else bytes_text(old)
    sizes = ["before", "after"] if changed else ["bytes"]
    head = ["value", *sizes, "of one step", "steps", "made at", "read by, backward"]
    numbers = {"steps", "before", "after", "bytes"}
    columns = [
        element("th", title, scope="col", class_="number" if title in numbers else None)
        for title in head
    ]
    bodies = [element("tbody", [_row(row, changed, old) for row in rows[:SHOWN]])]
    rest = rows[SHOWN:]
    if rest:
        bodies.append(element("tbody", [_row(row, changed, old) for row in rest], class_="rest"))
    return element(
        "section",
        element("h2", "Kept for the backward pass ", element("small", total)),
        element(
            "div",
            element("table", element("thead", element("tr", columns)), bodies, class_="kept-table"),
            class_="scroll",
            role="region",
            tabindex="0",
            aria_label="what the gradient keeps",
        ),
        _more(len(rest)) if rest else None,
        id="kept",
    )


def _more(count: int) -> Markup:
    return element(
        "button", f"show {plural(count, 'smaller value')}", type="button", id="more-kept"
    )


def _rows(before: Graph, after: Graph) -> Iterator[Row]:
    """Intermediate values of both programs, those of the same line and type together."""
    found: dict[Key, Row] = {}
    for graph, which in ((before, "before"), (after, "after")):
        for each in saved(graph):
            if each.kind != "intermediate" or not each.nbytes:
                continue
            made = maker(each.made)
            frame, type_ = frame_of(made), type_text(made.aval)
            row = found.setdefault((frame, type_), Row(label(made), type_, frame, each.lengths))
            setattr(row, which, getattr(row, which) + each.nbytes)
            row.readers |= {(op.name, frame_of(op)): None for op in each.needed_by}
    yield from found.values()


def _row(row: Row, changed: bool, total: int) -> Markup:
    sizes = [row.before, row.after] if changed else [row.before]
    lengths = " × ".join(f"{length:,}" for length in row.lengths)
    return element(
        "tr",
        element("th", element("code", row.label), scope="row"),
        [_size(size, total) for size in sizes],
        element("td", element("code", row.type)),
        element("td", lengths, class_="number"),
        element("td", link(row.frame)),
        element("td", _readers(list(row.readers))),
    )


def _size(size: int, total: int) -> Markup:
    share = f"--share:{size / max(total, 1):.4f}"
    text = bytes_text(size) if size else ""
    return element("td", element("span", text, class_="bar", style=share), class_="number residual")


def _readers(readers: Sequence[tuple[str, Frame | None]]) -> list[Markup]:
    told = [
        element("span", element("code", name), " ", link(frame), class_="reader")
        for name, frame in readers[:READERS]
    ]
    if len(readers) > READERS:
        told.append(element("small", f"and {len(readers) - READERS} more"))
    return told
