"""The head of the page: the function, whether it was optimised, and the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jaxpr_opt.html.markup import Markup, element
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.printing import plural
from jaxpr_opt.reports.figures import SAME, Figure, factor, figures
from jaxpr_opt.reports.report import Report
from jaxpr_opt.sizes import bytes_text

TOLD = 1.1
"""From which ratio on the verdict speaks of a figure."""
WORDS = {
    "peak_bytes": ("less memory", "more memory", "no memory"),
    "residual_bytes": (
        "less kept for the backward pass",
        "more kept for the backward pass",
        "nothing kept for the backward pass",
    ),
    "flops": ("fewer FLOPs", "more FLOPs", "no FLOPs"),
}
"""What the verdict speaks of, in this order: how it says that there is less, more, or none."""


def header(report: Report, before: Graph, findings: Sequence[Finding]) -> Markup:
    """The top of the page."""
    rows = _rows(report)
    size = bytes_text(sum(value.nbytes for value in before.inputs))
    facts = [f"{plural(len(before.inputs), 'argument')}, {size}"]
    if findings:
        facts.append(plural(len(findings), "finding"))
    return element(
        "header",
        element("p", "jaxpr-opt report", class_="brand"),
        element("h1", element("code", report.name)),
        element("p", verdict(report, rows), class_="verdict"),
        element("p", "; ".join(facts), class_="aside"),
        element(
            "dl",
            [_card(row) if report.changed else _plain_card(row) for row in rows.values()],
            class_="cards",
        ),
    )


def _rows(report: Report) -> dict[str, Figure]:
    """The figures by name, the most telling first."""
    rows = {row.key: row for row in figures(report.diff.before, report.diff.after)}
    shown = [rows[key] for key in ("peak_bytes", "residual_bytes", "flops", "equations")]
    return {row.key: row for row in shown if row.before or row.after}


def verdict(report: Report, rows: Mapping[str, Figure]) -> str:
    """One sentence: what the optimised program does that the other does not."""
    if not report.changed:
        misses = sum(len(each.refused) for each in report.passes if not each.cleanup)
        near = f", {plural(misses, 'near miss')}" if misses else ""
        return f"No pass found anything to improve{near}."
    gains = list(_gains(rows))
    if not gains:
        fired = sum(bool(each.done) and not each.cleanup for each in report.passes)
        return f"Rewritten by {plural(fired, 'pass')}; the estimates stay about the same."
    *first, last = gains
    sentence = f"{', '.join(first)} and {last}." if first else f"{last}."
    return sentence[0].upper() + sentence[1:]


def _gains(rows: Mapping[str, Figure]) -> Iterator[str]:
    """`14 × less memory`, for each figure that has notably changed."""
    for name, (less, more, none) in WORDS.items():
        row = rows.get(name)
        if row is None or not row.before:
            continue
        if row.after is None:
            yield "loops that stop when they are done"
        elif not row.after:
            yield none
        elif row.before / row.after >= TOLD:
            yield f"{factor(row.before / row.after)} × {less}"
        elif row.after / row.before >= TOLD:
            yield f"{factor(row.after / row.before)} × {more}"


def _plain_card(row: Figure) -> Markup:
    _, before, _, _ = row.columns()
    return element(
        "div", element("dt", row.label), element("dd", element("b", before)), class_="card"
    )


def _card(row: Figure) -> Markup:
    _, before, after, change = row.columns()
    if row.before == row.after:
        return _plain_card(row)
    better = row.before is not None and row.after is not None and row.after < row.before
    tone = "" if change == SAME else "better" if better else "worse"
    arrow = element("span", " → ", class_="arrow", role="img", aria_label="becomes")
    return element(
        "div",
        element("dt", row.label),
        element("dd", change, class_=f"change {tone}".rstrip()) if change else None,
        element("dd", element("span", before, class_="was"), arrow, element("b", after)),
        element("dd", list(_bars(row.before, row.after)), class_="bars", aria_hidden="true"),
        class_="card",
    )


def _bars(before: float | None, after: float | None) -> Iterator[Markup]:
    """Both as bars; none where one is not known."""
    if before is None or after is None:
        return
    for which, size in (("before", before), ("after", after)):
        yield element("i", class_=which, style=f"--share:{size / max(before, after):.4f}")
