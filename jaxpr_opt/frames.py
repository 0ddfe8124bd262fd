"""Places in the user's source and names of functions, as people read them:
``examples/bounded_while.py:31 in step``.
"""

from __future__ import annotations

import functools
import os
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

Frame = tuple[str, int, str]
"""File, line, function."""

_MACHINERY = (
    f"{Path(__file__).parent}{os.sep}",
    f"{Path(jax.__file__).parent}{os.sep}",
    "<frozen ",
    functools.__file__,  # between a lazy property and what asks for it
)
_PACKAGES = tuple(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
_INSTALLED = tuple(
    f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")
)


@functools.cache
def is_machinery(file: str) -> bool:
    """Whether the file is JAX's or ours."""
    return file.startswith(_MACHINERY)


@functools.cache
def is_installed(file: str) -> bool:
    """Whether the file is part of Python or of an installed package."""
    return file.startswith(_INSTALLED)


def name_of(fun: Callable[..., Any]) -> str:
    """The name of a function as people write it."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return str(getattr(fun, "__name__", type(fun).__name__))


def frame_text(frame: Frame) -> str:
    """`file:line in function`, the file relative to the current directory where it is below it, or
    to where packages are installed.
    """
    file, line, function = frame
    path = Path(file)
    for folder in (*_PACKAGES, Path.cwd()):
        if path.is_absolute() and path.is_relative_to(folder):
            path = path.relative_to(folder)
    place = f"{path}:{line}"
    return place if function in ("", "<module>") else f"{place} in {function.rpartition('.')[2]}"


def blame(error: BaseException) -> str:
    """One line about an exception: its type, its first line, where the user's code raised it."""
    message = first_line(error)
    if isinstance(error, SyntaxError) and error.filename:
        return (
            f"{message.partition(' (')[0]} ({frame_text((error.filename, error.lineno or 0, ''))})"
        )
    frame = _innermost(error)
    return message if frame is None else f"{message} ({frame_text(frame)})"


def first_line(error: BaseException) -> str:
    """The type of an exception, and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def raised_at(error: BaseException) -> Frame | None:
    """Where the user's code made what JAX could not transform, or else raised an exception."""
    before = error.__cause__  # JAX's JaxStackTraceBeforeTransformation
    return (None if before is None else _innermost(before)) or _innermost(error)


def _innermost(error: BaseException) -> Frame | None:
    """The innermost frame of an exception that is the user's; if none is, that is a library's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_machinery(f.filename)]
    theirs = [f for f in frames if not is_installed(f.filename)]
    if not frames:
        return None
    frame = (theirs or frames)[-1]
    return frame.filename, frame.lineno or 0, frame.name
