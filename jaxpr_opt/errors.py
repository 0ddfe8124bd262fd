"""What is wrong with what a user wrote: one sentence, and what to do next."""

from collections.abc import Iterable
from difflib import get_close_matches


class TargetError(Exception):
    """The function or its arguments are not what the user thinks they are."""


def nearest(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The end of a message about an unknown word: the nearest known word; where none is near,
    `otherwise`, or all known words.
    """
    known = list(known)
    close = get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f": expected one of {', '.join(known)}" if otherwise is None else otherwise
