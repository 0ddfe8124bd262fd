"""Places in the user's source, as links and as keys that tie the parts of the page together."""

from __future__ import annotations

from pathlib import Path

from jaxpr_opt.frames import Frame, frame_text
from jaxpr_opt.html.markup import Markup, element


def key(frame: Frame | None) -> str:
    """What identifies the line: `data-at` of everything that comes from it; empty for nowhere."""
    return "" if frame is None else f"{Path(frame[0]).name}:{frame[1]}"


def anchor(file: str, line: int) -> str:
    """The id of a line in the source section."""
    return f"L-{Path(file).name}-{line}"


def link(frame: Frame | None) -> Markup:
    """The place in words, linked to the line."""
    if frame is None:
        return Markup()
    target = f"#{anchor(frame[0], frame[1])}"
    return element("a", key(frame), href=target, data_at=key(frame), title=frame_text(frame))
