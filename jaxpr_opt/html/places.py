"""Places in the user's source, as links and as keys that tie the parts of the page together."""

from __future__ import annotations

from pathlib import Path

from jaxpr_opt.frames import Frame, frame_text
from jaxpr_opt.html.markup import Markup, element
from jaxpr_opt.ir import Op, Scan, Value, While
from jaxpr_opt.pipeline import user_frame

MOVED = frozenset({"broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "transpose"})
"""Ops whose result is their operand in another form."""


def frame_of(item: Op | Value) -> Frame | None:
    """Where an op, or what made a value, comes from; None for arguments and constants."""
    op = item if isinstance(item, Op) else item.op or _around(item)
    return None if op is None else user_frame(op)


def _around(param: Value) -> Op | None:
    """The op that a region's parameter belongs to."""
    owner = param.region.owner if param.region is not None else None
    return owner if isinstance(owner, Op) else None


def maker(value: Value) -> Value:
    """Where a value comes from: of a buffer that is filled slice by slice, what it is filled with.

    That is what a loop's stack becomes when the loop is made to stop early.
    """
    while (op := value.op) is not None:
        if op.name == "dynamic_update_slice":
            value = op.operands[1]
        elif op.name in MOVED:
            value = op.operands[0]
        else:
            break
    return value


def label(value: Value) -> str:
    """What to call a value: as JAX does, or after what makes it."""
    if value.op is not None or value.name:
        return value.label
    return "carry" if isinstance(_around(value), Scan | While) else "input"


def key(frame: Frame) -> str:
    """What identifies the line: `data-at` of everything that comes from it."""
    return f"{Path(frame[0]).name}:{frame[1]}"


def anchor(file: str, line: int) -> str:
    """The id of a line in the source section."""
    return f"L-{Path(file).name}-{line}"


def link(frame: Frame | None) -> Markup:
    """The place in words, linked to the line."""
    if frame is None:
        return element("span", "—", class_="nowhere")
    file, line, _ = frame
    text = f"{Path(file).name}:{line}"
    return element("a", text, href=f"#{anchor(file, line)}", data_at=text, title=frame_text(frame))
