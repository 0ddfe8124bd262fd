"""What is being done, on stderr, for as long as it takes: at a terminal only, never in a log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console

Tell = Callable[[str], None]
"""Replaces what is shown."""


@contextlib.contextmanager
def working(what: str = "") -> Iterator[Tell]:
    """Show what is being done, and that it goes on; it is gone at the end."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(stderr=True).status(what) as status:
        yield status.update
