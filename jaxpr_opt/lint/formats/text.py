"""Text for people: at a terminal, or in a log of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jaxpr_opt.frames import frame_text
from jaxpr_opt.lint.finding import Finding, Severity
from jaxpr_opt.lint.result import FIGURES, Checked, Result
from jaxpr_opt.reports.figures import limit_text
from jaxpr_opt.sizes import bytes_text

_CONTROL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
NAME = 28
"""Characters of a target's name that fit beside its figures."""
STYLES: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}


def render(result: Result, statistics: bool = False) -> RenderableType:
    """The findings target by target; with `statistics`, what targets cost and rules found.

    Targets that could not be looked at are not in it, they are errors.
    """
    shown: list[RenderableType] = []
    for each in result.targets:
        shown += _target(each)
    if statistics:
        shown += [_figures(result), Text()]
        shown += [_statistics(result), Text()] if result.findings else []
    shown.append(Text(_capitalised(result.summary()), "bold"))
    if not result.findings and (least := result.unreported):
        shown.append(Text(f"Residuals below {limit_text(least)} are not reported (min-bytes)."))
    return Group(*shown)


def _capitalised(sentence: str) -> str:
    return f"{sentence[0].upper()}{sentence[1:]}."


def _target(checked: Checked) -> Iterator[RenderableType]:
    if checked.error:
        return
    figures = checked.figures_text()
    yield _Heading(checked.name, figures)
    if checked.findings or checked.growth is not None:
        yield Text()
    if checked.growth is not None:
        yield Padding(checked.growth.table(), (0, 0, 1, 2))
    yield findings(checked.findings)


@dataclass(frozen=True, slots=True)
class _Heading:
    """A target, and its figures: beside it, or below where that is too wide."""

    name: str
    figures: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fits = len(self.name) + 2 + len(self.figures) <= options.max_width
        if fits and self.figures:
            yield Text(self.name, "bold").append(f"  {self.figures}", "not bold dim")
        else:
            yield Text(self.name, "bold")
            yield from [_indented(Text(self.figures, "dim"))] if self.figures else []


def findings(found: Sequence[Finding]) -> RenderableType:
    """Findings without what else is known of their targets."""
    return Group(*(line for finding in found for line in _finding(finding)))


def _finding(finding: Finding) -> Iterator[RenderableType]:
    """Where, what, why, and what to do; every line but the first is indented."""
    if finding.frame is not None:
        yield Text(f"{frame_text(finding.frame)}", "bold")
    heading = Text(finding.severity, STYLES[finding.severity])
    heading.append(f" {finding.code} {finding.rule}", "not bold dim")
    yield _indented(heading)
    yield _indented(Text(finding.says))
    if cost := cost_text(finding):
        yield _indented(Text("costs: ", "dim").append(cost, "not dim"))
    if finding.reason:
        yield _indented(Text("why: ", "dim").append(finding.reason, "not dim"))
    yield _indented(Text("fix: ", "dim").append(finding.fix, "not dim green"))
    yield Text()


def cost_text(finding: Finding) -> str:
    """`f32[256,1024,1024], 1.07 GB = 256 x 4.19 MB`, but for what the finding says itself."""
    size = "" if finding.bytes is None else bytes_text(finding.bytes)
    product = " = ".join(filter(None, [size, finding.formula]))
    return ", ".join(part for part in (finding.shape, product) if part not in finding.says)


def printable(text: str) -> str:
    """Text without characters that XML, or people, cannot read."""
    return _CONTROL.sub("?", text)


def _indented(text: Text) -> RenderableType:
    return Padding(text, (0, 0, 0, 2))


def _figures(result: Result) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("target", overflow="fold")
    for label in FIGURES.values():
        table.add_column(label, justify="right")
    for each in result.targets:
        if each.figures:
            name = each.name if len(each.name) <= NAME else "/\n".join(each.name.rsplit("/", 1))
            table.add_row(name, *(bytes_text(each.figures[name]) for name in FIGURES))
    return table


def _statistics(result: Result) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    for _ in range(3):
        table.add_column()
    for rule in result.rules:
        found = [finding for finding in result.findings if finding.code == rule.code]
        if found:
            total = sum(finding.bytes or 0 for finding in found)
            size = bytes_text(total) if total else ""
            table.add_row(str(len(found)), rule.code, rule.name, size)
    return table


def headline(result: Result) -> str:
    """The run in one sentence, for where there is no more room."""
    return f"jaxpr-opt lint: {result.summary()}"
