"""Renderables at a terminal and in a log."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType


def plain(renderable: RenderableType, width: int = 80) -> str:
    """What rich would show, as text for a log: no colours, no trailing blanks."""
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
