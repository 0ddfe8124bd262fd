"""The page of a memory budget: memory against time, and what each point recomputes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from jaxpr_opt.html.markup import Markup, element
from jaxpr_opt.html.page import document
from jaxpr_opt.reports.frontier import Frontier, Point

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 300, 90, 40
"""Of the drawing, and of its margins, in its own units."""
ROOM = 15
"""Height of a label; one that would cover another is left out."""


def page(frontier: Frontier) -> str:
    """The choices of memory budgets, as a self-contained HTML page."""
    return document(
        f"{frontier.name}: memory budgets",
        element(
            "header",
            element("p", "jaxpr-opt budget", class_="brand"),
            element("h1", element("code", frontier.name)),
            element("p", frontier.headline, class_="verdict"),
        ),
        element(
            "main",
            element("section", _picture(frontier)),
            element("section", _table(frontier), class_="scroll"),
        ),
    )


def _picture(frontier: Frontier) -> Markup:
    """Temporary memory, on a logarithmic scale, against predicted time."""
    places = list(_places(frontier.points))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return element(
        "svg",
        element("line", x1=LEFT, y1=10, x2=LEFT, y2=HEIGHT - BOTTOM, class_="axis"),
        element("line", x1=LEFT, y1=HEIGHT - BOTTOM, x2=WIDTH, y2=HEIGHT - BOTTOM, class_="axis"),
        element("text", "temporary memory", x=4, y=HEIGHT - BOTTOM + 28),
        element("text", "predicted time", x=WIDTH - 4, y=HEIGHT - BOTTOM + 28, text_anchor="end"),
        element("polyline", points=path, class_="frontier"),
        list(_marks(frontier, places)),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{frontier.headline}; {len(frontier.points)} programs to choose from",
        class_="budget",
    )


def _places(points: tuple[Point, ...]) -> Iterator[tuple[float, float]]:
    """Where points are drawn: the fastest left, the largest on top."""
    seconds = [point.seconds for point in points]
    heights = [math.log(max(point.bytes, 1)) for point in points]
    wide = max(seconds) - min(seconds) or 1.0
    high = max(heights) - min(heights) or 1.0
    for x, y in zip(seconds, heights, strict=True):
        right = (x - min(seconds)) / wide
        up = (y - min(heights)) / high
        yield LEFT + 20 + right * (WIDTH - LEFT - 60), 30 + (1 - up) * (HEIGHT - BOTTOM - 50)


def _marks(frontier: Frontier, places: list[tuple[float, float]]) -> Iterator[Markup]:
    """The programs; the pointer shows what each computes again."""
    last = (-math.inf, -math.inf)
    for point, (x, y) in zip(frontier.points, places, strict=True):
        memory, *_, time, again = frontier.row(point).values()
        label = element("title", f"{memory}, {time} the time: {again}")
        yield element("circle", label, cx=f"{x:.1f}", cy=f"{y:.1f}", r=6)
        if y - last[1] >= ROOM:
            yield element("text", memory, x=LEFT - 8, y=f"{y + 4:.1f}", text_anchor="end")
        if y - last[1] >= ROOM or x - last[0] >= 3 * ROOM:
            yield element("text", time, x=f"{x:.1f}", y=f"{y - 12:.1f}", text_anchor="middle")
            last = x, y


def _table(frontier: Frontier) -> Markup:
    """The same in numbers."""
    rows = [frontier.row(point) for point in frontier.points]
    head = [element("th", each, scope="col") for each in rows[0]]
    cells = [[element("td", each) for each in row.values()] for row in rows]
    return element(
        "table",
        element("thead", element("tr", head)),
        element("tbody", [element("tr", row) for row in cells]),
        class_="budget",
    )
