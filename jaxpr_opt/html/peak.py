"""The arrays at the memory peak, as a table for readers who do not see the chart."""

from __future__ import annotations

from jaxpr_opt.bridge.dtypes import type_text
from jaxpr_opt.html.markup import Content, Markup, element
from jaxpr_opt.html.places import link
from jaxpr_opt.insight.timeline import Instant, Live
from jaxpr_opt.ir.graph import Value
from jaxpr_opt.reports.residual_rows import key
from jaxpr_opt.sizes import bytes_text


def table(instant: Instant, arguments: int) -> Markup:
    """The arguments, the largest values, and the rest."""
    rest = instant.live - arguments - sum(live.bytes for live in instant.largest)
    most = max(arguments, rest, *(live.bytes for live in instant.largest))
    rows = [_row("arguments", "", arguments, "argument", None, most)] if arguments else []
    rows += [_value(live, most) for live in instant.largest]
    rows += [_row("all others", "", rest, "other", None, most)] if rest else []
    head = [
        element("th", "what the peak is made of", scope="col"),
        element("th", "bytes", scope="col", class_="number"),
        element("th", "made at", scope="col"),
    ]
    return element(
        "table",
        element("thead", element("tr", head)),
        element("tbody", rows),
        class_="at-peak",
    )


def kind(live: Live) -> str:
    """The class of a value in the picture."""
    return "temporary" if live.residual is None else "residual"


def maker(live: Live) -> Value:
    """The value to tell it by: of a stack, what each step puts there."""
    return live.value if live.residual is None else live.residual.made


def _value(live: Live, most: int) -> Markup:
    name, frame, _ = key(maker(live))
    type_ = type_text(live.value.aval)
    return _row(element("code", name), type_, live.bytes, kind(live), link(frame), most)


def _row(name: Content, type_: str, size: int, kind: str, place: Content, most: int) -> Markup:
    title = [element("i", class_=f"swatch {kind}"), name, " ", element("small", type_)]
    bar = element("span", bytes_text(size), class_="bar", style=f"--share:{size / most:.4f}")
    return element(
        "tr",
        element("th", *title, scope="row"),
        element("td", bar, class_=f"number {kind}"),
        element("td", place),
    )
