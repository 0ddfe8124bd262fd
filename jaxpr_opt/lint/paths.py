"""Paths of files as they are written into reports and matched with patterns."""

from __future__ import annotations

from pathlib import Path


def relative(file: str, root: Path) -> str:
    """With slashes, and relative to `root` where the file is below it."""
    path = Path(file)
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
