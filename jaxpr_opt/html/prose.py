"""Sentences of reports as markup."""

from __future__ import annotations

import re

from jaxpr_opt.html.markup import Markup, element, together
from jaxpr_opt.report import short

_QUOTED = re.compile(r"`+([^`]+)`+")


def prose(sentence: str) -> Markup:
    """A sentence with what it quotes as code, and long lists of names cut short."""
    parts = _QUOTED.split(short(sentence))
    return together([element("code", part) if i % 2 else part for i, part in enumerate(parts)])


def plural(count: int, noun: str) -> str:
    """`1 pass`, `2 passes`."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"
