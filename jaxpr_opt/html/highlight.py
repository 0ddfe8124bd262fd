"""Python source as markup: keywords, strings, comments and numbers are distinguished."""

from __future__ import annotations

import io
import keyword
import tokenize
from collections.abc import Iterator

from jaxpr_opt.html.markup import Markup, element, together

CLASSES = {tokenize.COMMENT: "comment", tokenize.STRING: "string", tokenize.NUMBER: "literal"}
if hasattr(tokenize, "FSTRING_START"):  # Python 3.12 and later take f-strings apart
    CLASSES |= {
        getattr(tokenize, f"FSTRING_{part}"): "string" for part in ("START", "MIDDLE", "END")
    }


def highlighted(source: str) -> list[Markup]:
    """The lines of a file; as they are where it is not Python after all."""
    lines = source.splitlines()
    parts: list[list[Markup]] = [[] for _ in lines]
    ends = [0] * len(lines)
    try:
        for row, start, end, kind in _pieces(source):
            line = lines[row]
            parts[row] += [
                together(line[ends[row] : start]),
                element("span", line[start:end], class_=kind),
            ]
            ends[row] = end
    except (tokenize.TokenError, SyntaxError):
        return [together(line) for line in lines]
    return [together([*parts[row], line[ends[row] :]]) for row, line in enumerate(lines)]


def _pieces(source: str) -> Iterator[tuple[int, int, int, str]]:
    """Line, first and last column, class of everything that has one; line by line."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = CLASSES.get(token.type, "")
        if token.type == tokenize.NAME and keyword.iskeyword(token.string):
            kind = "keyword"
        if not kind:
            continue
        (first, start), (last, end) = token.start, token.end
        for row in range(first - 1, last):
            yield (
                row,
                start if row == first - 1 else 0,
                end if row == last - 1 else len(lines[row]),
                kind,
            )
