"""The words of a command line before `argparse` sees them, and those it does not know."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence

from jaxpr_opt.errors import nearest

_OPTION = re.compile(r"-[A-Za-z]|--[a-z][a-z-]*")
_NUMBER = re.compile(r"-\.?\d")
_TARGET = re.compile(r"[^\[\]'\"]*(:[\w.]+|\.py)")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_VALUES = frozenset({"True", "False", "None"})


def ordered(words: Sequence[str]) -> list[str]:
    """The words with targets moved from behind ``--args`` to before it, which takes all it gets."""
    made: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--args":
            given = list(_until_option(rest))
            del rest[: len(given)]
            targets = [each for each in given if _is_target(each)]
            made += [*targets, word, *(each for each in given if each not in targets)]
        else:
            made.append(word)
    return made


def _until_option(words: Iterable[str]) -> Iterator[str]:
    for word in words:
        if word.startswith("-") and not _NUMBER.match(word):
            return
        yield word


def _is_target(word: str) -> bool:
    """Whether a word is no argument, as `f32[8]` and 0.5 are, but a function, a file or a name."""
    if _TARGET.fullmatch(word):
        return True
    return _NAME.fullmatch(word) is not None and word not in _VALUES


def unknown(words: Sequence[str], command: argparse.ArgumentParser) -> str:
    """The error about a word that a command does not know, with what it may have been."""
    for word in words:
        if word.startswith("-"):
            name = word.partition("=")[0]
            hint = nearest(name, options_of(command), f"; see {command.prog} --help")
            return f"{command.prog} has no option {name}{hint}"
    return f"{command.prog} takes no {words[0]!r}; see {command.prog} --help"


_CHOICE = re.compile(r"(argument [^:]+): invalid choice: '?([^' ]+)'? \(choose from (.*)\)")


def clearer(message: str) -> str:
    """The message of `argparse`, with the word that was meant if it does not know one."""
    match = _CHOICE.fullmatch(message)
    if match is None:
        return message
    hint = nearest(match[2], re.findall(r"[\w-]+", match[3]))
    return f"{match[1]}: there is no {match[2]!r}{hint}"


def options_of(command: argparse.ArgumentParser) -> list[str]:
    """The options of a command, as its help shows them."""
    return list(dict.fromkeys(_OPTION.findall(_listed(command.format_help()))))


def _listed(text: str) -> str:
    """The lines of a help text that begin with an option."""
    return "\n".join(re.findall(r"^  (-[^ ].*?)(?:  |$)", text, re.MULTILINE))
