"""The page: one file that needs nothing else, neither a network nor a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import resources

import jax

from jaxpr_opt.html import headline, hover, memory, notes, program, residuals, source
from jaxpr_opt.html.markup import Content, Markup, element
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.reports.report import Report

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The browser sees to it that the page loads nothing."""


def page(report: Report, before: Graph, after: Graph, findings: Sequence[Finding] = ()) -> str:
    """A report on a program as a self-contained HTML page.

    Args:
      report: what happened to the program.
      before: as JAX makes it.
      after: as it is compiled.
      findings: what rules found in it.
    """
    picture = memory.picture(before, after, report.changed)
    found = list(notes.of_findings(findings))
    remarks = [*found, *notes.of_passes(report.passes)]
    sections = {
        "findings": ("Findings", notes.section(found)),
        "memory": ("Live memory", memory.section(picture)),
        "kept": ("Kept for the backward pass", residuals.section(before, after, report.changed)),
        "source": ("Source", source.section(before, after, remarks)),
        "program": ("Program", program.section(report)),
    }
    shown = {name: each for name, each in sections.items() if each[1]}
    links = [element("a", title, href=f"#{name}") for name, (title, _) in shown.items()]
    return document(
        f"{report.name}: jaxpr-opt report",
        headline.header(report, before, findings),
        element("nav", links, aria_label="sections"),
        element("main", [markup for _, markup in shown.values()]),
        scripts=(
            _data({panel.name: hover.data(panel.chart) for panel in picture.panels}),
            element("script", Markup(_asset("page.js"))),
        ),
    )


def document(title: str, *content: Content, scripts: Content = ()) -> str:
    """A page that needs no other file."""
    footer = element("footer", f"jaxpr-opt, JAX {jax.__version__}")
    body = element("body", content, footer, scripts)
    head = element("head", list(_head(title)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _head(title: str) -> Iterator[Markup]:
    yield element("meta", charset="utf-8")
    yield element("meta", http_equiv="Content-Security-Policy", content=POLICY)
    yield element("meta", name="viewport", content="width=device-width, initial-scale=1")
    yield element("meta", name="color-scheme", content="light dark")
    yield element("link", rel="icon", href="data:,")
    yield element("title", title)
    yield element("style", Markup(_asset("page.css")))


def _data(value: object) -> Markup:
    """Data for the script; nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return element("script", Markup(text), type="application/json", id="data")


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
