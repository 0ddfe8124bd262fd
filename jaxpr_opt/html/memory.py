"""The chart of live memory while a program runs, before and after."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.html import peak
from jaxpr_opt.html.chart import SIZE, Chart, Column, Stretch, chart
from jaxpr_opt.html.markup import Markup, element
from jaxpr_opt.html.places import name
from jaxpr_opt.html.prose import product
from jaxpr_opt.insight.timeline import Loop, timeline
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.ir.places import user_frame
from jaxpr_opt.sizes import bytes_text

KINDS = {
    "temporary": "temporary",
    "residual": "kept for the backward pass",
    "reserved": "reserved for it",
    "argument": "arguments",
}
"""What is live, from the top down, and how it is called."""
LABELLED = 0.08
"""A loop narrower than this share of the chart has no label."""
FLAT = 0.4
"""A chart lower than this share of the other is offered at its own scale."""
GRID = 5
"""Lines of the grid, about."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One program's chart."""

    name: str
    chart: Chart


@dataclass(frozen=True, slots=True)
class Picture:
    """The charts that are worth showing, on one scale."""

    panels: tuple[Panel, ...]
    base: int
    """Bytes at the foot of the charts: those of the arguments, where these are most of what is
    live.  They are the same throughout, and would hide what is not."""

    @property
    def range(self) -> int:
        """Bytes from the foot to the top."""
        return max(1, *(panel.chart.top - self.base for panel in self.panels))

    def share(self, panel: Panel) -> float:
        """How high a panel's chart is, compared with the highest."""
        return (panel.chart.top - self.base) / self.range


def picture(before: Graph, after: Graph, changed: bool) -> Picture:
    """The charts of two programs; one if nothing was done."""
    graphs = {"before": before, "after": after} if changed else {"as it is": before}
    panels = tuple(Panel(name, chart(timeline(graph))) for name, graph in graphs.items())
    arguments = panels[0].chart.arguments
    lowest = min(panel.chart.top for panel in panels)
    return Picture(panels, arguments if 2 * arguments > lowest else 0)


def section(shown: Picture) -> Markup:
    """The charts side by side, each with what its peak is made of."""
    flat = min(map(shown.share, shown.panels)) < FLAT
    return element(
        "section",
        element("h2", "Live memory"),
        element(
            "div",
            element("ul", list(_legend(shown)), class_="legend"),
            _scale_switch() if flat else None,
            class_="toolbar",
        ),
        element("div", [_figure(panel, shown) for panel in shown.panels], class_="panels"),
        element("p", *_note(shown), class_="aside"),
        id="memory",
    )


def _note(shown: Picture) -> Iterator[Markup | str]:
    if shown.base:
        yield (
            f"Drawn from the {bytes_text(shown.base)} of the arguments up, which the caller keeps "
            "throughout. "
        )
    yield (
        "Estimated: ops run in program order and nothing is fused. Each op that runs is one step "
        "to the right and loops repeat their body, long ones shortened where it is hatched; "
        "what a loop stacks takes its room from the first step on, as XLA allocates it. "
    )
    yield element(
        "span", "Hover, or focus a chart and use the arrow keys, to see an op.", class_="screen"
    )


def _legend(shown: Picture) -> Iterator[Markup]:
    charts = [panel.chart for panel in shown.panels]
    loops = [stretch.loop for c in charts for stretch in c.loops if stretch.loop is not None]
    has = {
        "temporary": True,
        "residual": any(column.tick.instant.residual for c in charts for column in c.columns),
        "reserved": any(loop.fills or loop.drains for loop in loops),
        "argument": any(c.arguments for c in charts) and not shown.base,
    }
    for kind, label in KINDS.items():
        if has[kind]:
            yield element("li", element("i", class_=f"swatch {kind}"), label)
    if any(c.backward for c in charts):
        yield element("li", element("i", class_="swatch backward"), "backward pass")


def _scale_switch() -> Markup:
    return element(
        "label",
        element("input", type="checkbox", id="own-scale"),
        " each on its own scale",
        class_="switch screen",
    )


def _figure(panel: Panel, shown: Picture) -> Markup:
    it = panel.chart
    return element(
        "figure",
        element(
            "figcaption",
            element("b", panel.name),
            element("span", "peak ", element("b", bytes_text(it.top))),
        ),
        element(
            "div",
            [_area("band", stretch) for stretch in it.backward],
            _grid(shown.range, shown.base, "same"),
            _grid(max(it.top - shown.base, 1), shown.base, "own"),
            _drawing(it, shown.base),
            [_area("gap", stretch) for stretch in it.gaps],
            _peak_mark(it.peak),
            element("div", class_="cursor", hidden=True),
            class_="plot",
            tabindex="0",
            role="slider",
            aria_label=f"live memory {panel.name}, op by op",
            aria_valuemin=0,
            aria_valuemax=len(it.columns) - 1,
            aria_valuenow=it.columns.index(it.peak),
            aria_valuetext=_in_words(it),
            style=f"--ratio:{shown.share(panel):.6g}",
            data_chart=panel.name,
        ),
        element("div", list(map(_loop, it.loops)), class_="loops", aria_hidden="true"),
        peak.table(it.peak.tick.instant, it.arguments),
        class_="panel",
    )


def _in_words(it: Chart) -> str:
    instant = it.peak.tick.instant
    frame = user_frame(instant.op)
    where = f" at {name(frame)}" if frame else ""
    return (
        f"peak: {bytes_text(instant.live)} live in {instant.op.name}{where},"
        f" {bytes_text(it.arguments)} of it arguments,"
        f" {bytes_text(instant.residual)} kept for the backward pass"
    )


def _grid(range_: int, base: int, which: str) -> Markup:
    """Lines at round numbers, for one of the two scales."""
    step = _round(range_ / GRID)
    sign = "+ " if base else ""
    lines = [
        element(
            "div",
            element("span", f"{sign}{bytes_text(n * step)}"),
            style=f"bottom:{100 * n * step / range_:.3f}%",
        )
        for n in range(int(range_ / step) + 1)
    ]
    return element("div", lines, class_=f"grid {which}", aria_hidden="true")


def _round(least: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(least, 1)))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= least)


def _drawing(it: Chart, base: int) -> Markup:
    paths = [element("path", d=d, class_=kind) for kind, d in it.areas(base).items()]
    return element(
        "svg",
        element("g", paths, transform=f"matrix(1 0 0 -1 0 {SIZE})"),
        viewBox=f"0 0 {SIZE} {SIZE}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )


def _area(kind: str, stretch: Stretch) -> Markup:
    return element("div", class_=kind, style=_across(stretch))


def _across(stretch: Stretch) -> str:
    return f"left:{100 * stretch.left:.2f}%;width:{100 * (stretch.right - stretch.left):.2f}%"


def _peak_mark(column: Column) -> Markup:
    at = (column.left + column.right) / 2
    instant = column.tick.instant
    text = f"{bytes_text(instant.live)} in {instant.op.name}"
    return element(
        "div",
        element("span", text),
        class_=f"peak {'left' if at > 0.5 else 'right'}",
        style=f"left:{100 * at:.2f}%",
    )


def _loop(stretch: Stretch) -> Markup:
    assert stretch.loop is not None
    times = _times(stretch.loop)
    wide = stretch.right - stretch.left > LABELLED
    return element("span", times if wide else "", title=f"loop {times}", style=_across(stretch))


def _times(loop: Loop) -> str:
    """`× 8`; `× 2 × 2 × 2` for loops that are all there is in a step of the one around them."""
    nest = list(_nest(loop))
    known = [times for times in nest if times is not None]
    if len(known) == len(nest):
        return f"× {product(known)}"
    return " ".join("while" if times is None else f"× {times:,}" for times in nest)


def _nest(loop: Loop) -> Iterator[int | None]:
    yield loop.times
    inner = [span for span in loop.body if isinstance(span, Loop)]
    if len(inner) == 1:
        yield from _nest(inner[0])
