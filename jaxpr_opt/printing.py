"""Words, and renderables at a terminal and in a log."""

from __future__ import annotations

import io
import re

from rich.console import Console, RenderableType

_NAME = r"(?:[\w-]+ of `[^`]+`|[^\s:;`]*[^\s:;,`])"
_MANY_NAMES = re.compile(rf"({_NAME}, {_NAME})((?:, {_NAME}){{2,}})")
"""Four names or more in a row: two are shown, the rest are counted."""


def plain(renderable: RenderableType, width: int = 80) -> str:
    """The text that rich would show, for a log: no colours, no trailing blanks."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, highlight=False)
    console.print(renderable, crop=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def show(renderable: RenderableType, console: Console) -> None:
    """Print for a person at a terminal, or as text for a log."""
    if console.is_terminal:
        console.print(renderable, crop=False)
    else:
        console.file.write(f"{plain(renderable, console.width)}\n")


def plural(count: int, noun: str) -> str:
    """`1 pass`, `2 passes`."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def short(sentence: str) -> str:
    """`f32[2], f32[4], bool[], x: kept once` as `f32[2], f32[4] and 2 more: kept once`."""
    return _MANY_NAMES.sub(lambda m: f"{m[1]} and {m[2].count(', ')} more", sentence)
