"""Messages on stderr: complaints, and at a terminal what is being done."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Tell = Callable[[str], None]
"""Replaces what is shown."""


@contextlib.contextmanager
def working(what: str) -> Iterator[Tell]:
    """Show what is being done, and that it goes on; it is gone at the end."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # a complaint does not wait for it

    with Console(stderr=True).status(what) as status:
        yield status.update


def complain(kind: str, message: str) -> None:
    """One line; none if stderr is closed."""
    if sys.stderr is not None:
        print(f"jaxpr-opt: {kind}: {message}", file=sys.stderr)
