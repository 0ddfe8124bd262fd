"""Markdown for a pull request or a step summary: what each target costs, and a short table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxpr_opt.lint.finding import Finding, Severity
from jaxpr_opt.lint.formats.text import cost_text, printable
from jaxpr_opt.lint.paths import relative
from jaxpr_opt.lint.result import FIGURES, Checked, Result
from jaxpr_opt.printing import plural
from jaxpr_opt.sizes import bytes_text

MOST = 50
"""Findings that are listed: a comment on GitHub has 65,536 characters."""
SIGNS: dict[Severity, str] = {"error": "❌", "warning": "⚠️", "note": "ℹ️"}  # noqa: RUF001


def write(result: Result) -> str:
    """The run as Markdown."""
    return "\n".join(_lines(result)) + "\n"


def _lines(result: Result) -> Iterator[str]:
    yield f"### jaxpr-opt lint: {result.summary()}"
    if result.targets:
        yield ""
        yield from _targets(result.targets)
    for each in result.targets:
        if each.growth is not None:
            yield ""
            yield f"{_code(each.name)} grows as {each.growth.sentence()}."
    for each in result.errors:
        yield ""
        yield f"{SIGNS['error']} {_inline(each.error)}"
    if result.findings:
        yield ""
        yield from _findings(result)


def _targets(targets: Sequence[Checked]) -> Iterator[str]:
    yield f"| target | {' | '.join(FIGURES.values())} | findings |"
    yield f"|---|{'--:|' * len(FIGURES)}--:|"
    for each in targets:
        sizes = [bytes_text(each.figures[name]) if each.figures else "?" for name in FIGURES]
        yield f"| {_code(each.name)} | {' | '.join(sizes)} | {len(each.findings)} |"


def _findings(result: Result) -> Iterator[str]:
    several = len(result.targets) > 1
    yield f"| | where | what{' | target' if several else ''} | what to do |"
    yield f"|---|---|---|{'---|' if several else ''}---|"
    for finding in result.findings[:MOST]:
        target = f" | {_code(finding.target)}" if several else ""
        cells = f"{_where(finding, result)} | {_what(finding)}{target} | {_inline(finding.fix)}"
        yield f"| {SIGNS[finding.severity]} | {cells} |"
    if (more := len(result.findings) - MOST) > 0:
        yield ""
        yield f"and {plural(more, 'more finding')}."


def _where(finding: Finding, result: Result) -> str:
    if finding.frame is None:
        return ""
    file, line, _ = finding.frame
    return _code(f"{relative(file, result.root)}:{line}")


def _what(finding: Finding) -> str:
    cost = cost_text(finding)
    rule = _code(f"{finding.code} {finding.rule}")
    return f"{_inline(finding.says)}{f' ({_inline(cost)})' if cost else ''}<br>{rule}"


def _code(text: str) -> str:
    return f"`{text.replace('`', '').replace('|', chr(92) + '|')}`"


def _inline(text: str) -> str:
    """Text in a cell: on one line, and nothing in it is a tag or the end of the cell."""
    escaped = " ".join(printable(text).split()).replace("<", "&lt;").replace("|", "\\|")
    return escaped.replace("*", "\\*") if "`" not in escaped else escaped
