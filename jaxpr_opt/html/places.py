"""Places in the user's source, as links and as keys that tie the parts of the page together."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from jaxpr_opt.frames import Frame, frame_text
from jaxpr_opt.html.markup import Markup, element


@functools.cache
def short(file: str) -> str:
    """The path, from the current directory where it is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def key(frame: Frame | None) -> str:
    """The key of the line: `data-at` of everything that comes from it; empty for nowhere."""
    return "" if frame is None else f"{short(frame[0])}:{frame[1]}"


def name(frame: Frame) -> str:
    """The name of the line where there is little room: without its folders."""
    return f"{Path(frame[0]).name}:{frame[1]}"


def anchor(file: str, line: int) -> str:
    """The id of a line in the source section."""
    return f"L-{re.sub(r'[^A-Za-z0-9.]+', '-', short(file))}-{line}"


def link(frame: Frame | None) -> Markup:
    """The place in words, linked to the line."""
    if frame is None:
        return Markup()
    target = f"#{anchor(frame[0], frame[1])}"
    return element("a", name(frame), href=target, data_at=key(frame), title=frame_text(frame))
