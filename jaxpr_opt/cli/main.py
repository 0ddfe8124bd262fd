"""``jaxpr-opt``: what the optimiser does to a function, seen from the shell.

Results go to stdout; what went wrong is one line on stderr and exit code 2.  Colours appear on a
terminal only.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from jaxpr_opt.cli import words
from jaxpr_opt.cli.grammar import UsageError, parser
from jaxpr_opt.stderr import complain


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if sys.stdout is None:
        complain("error", "standard output is closed: results are written to it")
        return 2
    console = Console(markup=False, highlight=False, emoji=False)
    wants_traceback = "--traceback" in argv
    try:
        options = _parsed(argv)
        wants_traceback = options.traceback
        with _plain_warnings():
            code: int = options.run(options, console)
            sys.stdout.flush()
            return code
    except BrokenPipeError:  # the reader has seen enough: say nothing, neither now nor at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if wants_traceback:
            raise
        complain("error", _message(error))
        return 2


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    ordered = (
        argv if argv[:1] in (["run"], ["init"]) else words.ordered(argv)
    )  # a script's are its own
    options, unknown = parser().parse_known_args(ordered)
    if unknown:
        raise UsageError(words.unknown(unknown, options.command))
    return options


def _message(error: Exception) -> str:
    from jaxpr_opt.errors import TargetError
    from jaxpr_opt.frames import blame

    if isinstance(error, UsageError | TargetError):
        return str(error)
    return f"{blame(error)}; --traceback shows more"


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings as one line each, without the line of our code that issued them."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        complain("warning", " ".join(str(message).removeprefix("jaxpr_opt: ").split()))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
