"""A diff with a few lines around each change, their source lines, and the passes behind them.

What is between stays out: stretches of equal lines are counted.  Of a change deep inside of loops
and branches, the lines that open them are kept.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from jaxpr_opt.frames import Frame
from jaxpr_opt.reports.account import PassReport
from jaxpr_opt.reports.diff import STYLES, DiffLine, GraphDiff

Doers = Mapping[Frame, Iterable[str]]
"""The passes that changed something at a place, by the place."""
NEAR = 4
"""Changed lines that are so near each other belong together."""


def doers(passes: Iterable[PassReport]) -> Doers:
    """Where passes have changed something; those that only tidy up are left out."""
    found: defaultdict[Frame, dict[str, None]] = defaultdict(dict)
    for each in passes:
        for place in each.done:
            if place.frame is not None and not each.cleanup:
                found[place.frame][each.name] = None
    return found


@dataclass(frozen=True, slots=True)
class Unified:
    """A diff with `context` equal lines around each change; print it."""

    diff: GraphDiff
    context: int = 3
    doers: Doers | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from rendered(folded(self.diff.lines, self.context), self.doers, options.max_width)


def rendered(lines: Iterable[DiffLine], doers: Doers | None, width: int) -> Iterator[Text]:
    """Lines in colour, each with its place where there is room for it; above neighbouring changes
    the passes that changed something at one of their places.
    """
    lines = list(lines)
    headings = dict(_headings(lines, doers or {}))
    for index, (line, note) in enumerate(_noted(lines)):
        if index in headings:
            indent = "  " * (line.depth + 1)
            by = textwrap.shorten(
                f"# by {headings[index]}", width - len(indent), placeholder=" ..."
            )
            yield Text(f"{indent}{by}", "dim", no_wrap=True, overflow="ignore")
        style = STYLES[line.gutter]
        *parts, last = line.wrapped(width)
        for part in parts:
            yield Text(part, style, no_wrap=True, overflow="ignore")
        text = Text(last, style, no_wrap=True, overflow="ignore")
        if note and len(last) + 2 + len(note) <= width:
            text.append(f"  {note}", "dim")
        yield text


def _headings(lines: Sequence[DiffLine], doers: Doers) -> Iterator[tuple[int, str]]:
    """Where neighbouring changes begin, and the passes that changed something where they are.

    Not which pass changed which line: a pass is known by the place of what it looked at, and what
    it removes may come from others.
    """
    changes = [index for index, line in enumerate(lines) if line.gutter != " "]
    groups: list[list[int]] = []
    for index in changes:
        if groups and index - groups[-1][-1] <= NEAR:
            groups[-1].append(index)
        else:
            groups.append([index])
    for group in groups:
        frames = (frame for index in group if (frame := lines[index].frame) is not None)
        if names := dict.fromkeys(name for frame in frames for name in doers.get(frame, ())):
            yield group[0], ", ".join(names)


def _noted(lines: Iterable[DiffLine]) -> Iterator[tuple[DiffLine, str]]:
    """The lines, each with its place, unless the line above has the same."""
    above = ""
    for line in lines:
        note = _note(line) if line.gutter != " " else ""
        yield line, note if note != above else ""
        above = note


def _note(line: DiffLine) -> str:
    """`# model.py:31`."""
    return "" if line.frame is None else f"# {Path(line.frame[0]).name}:{line.frame[1]}"


def folded(lines: Sequence[DiffLine], context: int) -> Iterator[DiffLine]:
    """The lines with stretches of equal ones counted, but for `context` on each side of a change.

    A stretch as long as a change with its context stays, and so do lines that open what a change is
    inside of.
    """
    kept = _near_changes(lines, context)
    kept |= {opener for index in kept for opener in _around(lines, index)}
    start = 0
    while start < len(lines):
        end = start
        while end < len(lines) and end not in kept:
            end += 1
        if end - start > 2 * context + 1:
            yield counted(lines[start:end])
        else:
            yield from lines[start:end]
        yield from lines[end : end + 1]
        start = end + 1


def counted(lines: Sequence[DiffLine], repeats: bool = False) -> DiffLine:
    """A line in place of some; `repeats`: some of these changes were shown elsewhere."""
    count = sum(line.stands_for or 1 for line in lines)
    reads_only = any(line.reads_only for line in lines)
    above, besides = " or above" * repeats, ", but for what they read" * reads_only
    text = f"... {count} lines as before{above}{besides}"
    depth = min(line.depth for line in lines)
    return DiffLine(" ", depth, text, reads_only=reads_only, stands_for=count)


def _near_changes(lines: Sequence[DiffLine], context: int) -> set[int]:
    changes = (index for index, line in enumerate(lines) if line.gutter != " ")
    near = (range(index - context, index + context + 1) for index in changes)
    return {index for each in near for index in each if 0 <= index < len(lines)}


def _around(lines: Sequence[DiffLine], index: int) -> Iterator[int]:
    """The lines that open the regions which a line is in, innermost first."""
    depth = lines[index].depth
    while depth and index:
        index -= 1
        if lines[index].depth < depth and lines[index].text != "}":
            depth = lines[index].depth
            yield index
