"""The residuals of the gradient as a table: source line, size, reader."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jaxpr_opt.html.markup import Content, Markup, element, scrolled
from jaxpr_opt.html.places import link
from jaxpr_opt.html.prose import product
from jaxpr_opt.insight.saved import saved
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.printing import plural
from jaxpr_opt.reports.residual_rows import Residual, compared
from jaxpr_opt.sizes import bytes_text

SHOWN = 12
"""Rows that are shown; the smaller ones are folded."""
READERS = 2
"""Readers of a value that are named."""


def section(before: Graph, after: Graph, changed: bool) -> Markup | None:
    """The table; nothing for a program that differentiates nothing."""
    kept, instead = compared(before, saved(before), after, {})
    sized = [(row, row.bytes, row.optimized_bytes) for row in kept]
    sized += [(row, 0, row.bytes) for row in instead]
    sized = [each for each in sized if each[0].kind == "intermediate" and each[0].bytes]
    if not sized:
        return None
    sized.sort(key=lambda each: -each[0].bytes)
    most = sized[0][0].bytes
    rows = [_row(row, [old, new] if changed else [old], most) for row, old, new in sized]
    shown, rest = rows[:SHOWN], rows[SHOWN:]
    sizes = ["before", "after"] if changed else ["bytes"]
    table = element(
        "table",
        element("thead", element("tr", list(_titles(sizes)))),
        element("tbody", shown),
        element("tbody", rest, class_="rest") if rest else None,
        class_="kept-table",
    )
    says = "What the forward pass makes and the backward pass reads; arguments are not counted."
    return element(
        "section",
        element("h2", "Kept for the backward pass"),
        element("p", says, class_="aside"),
        scrolled(table, "what the gradient keeps"),
        _more(len(rest)) if rest else None,
        id="kept",
    )


def _titles(sizes: list[str]) -> Iterator[Markup]:
    for title in ["value", *sizes, "of one step", "steps", "made at", "read by"]:
        kind = "number" if title in {*sizes, "steps"} else None
        yield element("th", title, scope="col", class_=kind)


def _more(count: int) -> Markup:
    text = f"show {plural(count, 'smaller value')}"
    return element("button", text, type="button", id="more-kept", class_="screen")


def _row(row: Residual, sizes: list[int], most: int) -> Markup:
    times = [*row.lengths, *([row.count] if row.count > 1 else [])]
    return element(
        "tr",
        element("th", element("code", row.name), _remark(row), scope="row"),
        [_size(size, most) for size in sizes],
        element("td", element("code", row.shape)),
        element("td", product(times), class_="number"),
        element("td", link(row.frame)),
        element("td", list(_readers(row))),
    )


def _size(size: int, most: int) -> Markup:
    bar = element("span", bytes_text(size), class_="bar", style=f"--share:{size / most:.4f}")
    return element("td", bar if size else None, class_="number residual")


def _readers(row: Residual) -> Iterator[Markup]:
    """The ops of the backward pass, those of a line together."""
    lines = {need.frame: None for need in row.needed_by}
    for frame in itertools.islice(lines, READERS):
        ops = dict.fromkeys(need.op for need in row.needed_by if need.frame == frame)
        names: list[Content] = [element("code", ", ".join(ops)), " ", link(frame)]
        yield element("span", names, class_="reader")
    if len(lines) > READERS:
        yield element("small", f"and at {len(lines) - READERS} more")


def _remark(row: Residual) -> Markup | None:
    """What could be done about it."""
    if not row.needed_by:
        return element("small", "read by nothing")
    if row.cheap and row.optimized_bytes >= row.bytes:
        return element("small", f"cheap to recompute: {row.cheap}")
    return None
