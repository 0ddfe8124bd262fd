"""Annotations for GitHub Actions: lines it reads from the log of a step.

GitHub shows ten of each level, those it sees first; so the worst come first, and what does not fit
is in the step summary, with all the others.  See
https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from jaxpr_opt.frames import Frame
from jaxpr_opt.lint.finding import Finding, Severity
from jaxpr_opt.lint.formats import markdown
from jaxpr_opt.lint.formats.text import cost_text, headline
from jaxpr_opt.lint.paths import relative
from jaxpr_opt.lint.result import Result

MOST = 10
"""Annotations of one level in one step."""
LEVELS: dict[Severity, str] = {"error": "error", "warning": "warning", "note": "notice"}


def write(result: Result) -> str:
    """The annotations; the whole run goes to the step summary, if there is one."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    elsewhere = "left out"
    with contextlib.suppress(OSError):  # annotations matter more
        if summary:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(markdown.write(result))
            elsewhere = "in the step summary"
    return "\n".join(_lines(result, elsewhere))


def _lines(result: Result, elsewhere: str) -> Iterator[str]:
    for each in result.errors:
        properties = _place(each.place, result) | {"title": f"jaxpr-opt: {each.name}"}
        yield _command("error", properties, each.error)
    shown = Counter[Severity](error=len(result.errors))
    left = 0
    for finding in result.findings:
        if shown[finding.severity] < MOST:
            shown[finding.severity] += 1
            yield _annotation(finding, result)
        else:
            left += 1
    more = f"; {left} of them {elsewhere}" if left else ""
    yield f"{headline(result)}{more}"


def _annotation(finding: Finding, result: Result) -> str:
    cost = cost_text(finding)
    says = f"{finding.says} ({cost})" if cost else finding.says
    message = "\n".join(filter(None, [says, finding.reason, f"Fix: {finding.fix}"]))
    title = f"{finding.code} {finding.rule} ({finding.target})"
    place = _place(finding.frame, result)
    return _command(LEVELS[finding.severity], place | {"title": title}, message)


def _place(frame: Frame | None, result: Result) -> dict[str, str]:
    """The properties that put an annotation at a line."""
    if frame is None:
        return {}
    root = Path(os.environ.get("GITHUB_WORKSPACE") or result.root)
    return {"file": relative(frame[0], root), "line": str(frame[1])}


def _command(level: str, properties: dict[str, str], message: str) -> str:
    written = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {written}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
