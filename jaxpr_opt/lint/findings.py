"""Findings as `jaxpr_opt.lint` returns them."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult

from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.formats import text
from jaxpr_opt.printing import plain


class Findings(tuple[Finding, ...]):
    """Findings, worst first; print them, with rich or without."""

    __slots__ = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield text.findings(self) if self else "No findings."

    def __str__(self) -> str:
        return plain(self)
