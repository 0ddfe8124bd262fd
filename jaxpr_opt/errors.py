"""Errors in what a user wrote: one sentence, and what to do next."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from jaxpr_opt.frames import name_of


class TargetError(Exception):
    """The function or its arguments are not what the user thinks they are."""


class NoArraysError(TargetError, TypeError):
    """The function returns something, but no array."""


def nearest(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The end of a message about an unknown word: the nearest known word; where none is near,
    `otherwise`, or all known words.
    """
    known = list(known)
    close = get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f": expected one of {', '.join(known)}" if otherwise is None else otherwise


def check_function(fun: object, caller: str, name: str = "fun") -> None:
    """Raise `TypeError` for an argument that cannot be called, or whose calls return no arrays: a
    coroutine or a generator.  `caller`: the function of ours that it was given to.
    """
    if not callable(fun):
        raise TypeError(f"{caller}: {name} must be callable, got {fun!r}")
    if kind := suspended(fun):
        raise TypeError(f"{caller}: {name} must return arrays, but {name_of(fun)} is {kind}")


def suspended(fun: object) -> str | None:
    """What a function is called that does nothing when it is called; None for any other."""
    return next((kind for kind, is_so in _SUSPENDED.items() if is_so(fun)), None)


_SUSPENDED: dict[str, Callable[[Any], bool]] = {
    "a coroutine": inspect.iscoroutinefunction,
    "an asynchronous generator": inspect.isasyncgenfunction,
    "a generator": inspect.isgeneratorfunction,
}


def indefinite(noun: str) -> str:
    """A noun with its indefinite article, by its first letter."""
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"
