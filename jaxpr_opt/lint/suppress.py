"""Comments that suppress a finding: ``# jaxpr-opt: ignore[name]``.

Such a comment goes for the statement it stands in or behind; on a line of its own, for the one
below.  Several rules are separated by commas; a rule has its code or its name.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jaxpr_opt.lint.finding import Finding

COMMENT = re.compile(r"#\s*jaxpr-opt:\s*ignore(?P<list>\[(?P<rules>[^\]]*)\])?")


@dataclass(frozen=True, slots=True)
class Comment:
    """One comment, and what it goes for."""

    file: str
    line: int
    rules: tuple[str, ...]
    """As written; none if it does not say which."""
    first: int
    last: int
    """The lines of the statement."""

    def covers(self, finding: Finding) -> bool:
        """Whether the comment is about this finding."""
        return (
            finding.frame is not None
            and finding.frame[0] == self.file
            and self.first <= finding.frame[1] <= self.last
            and any(names(written, finding) for written in self.rules)
        )


def names(written: str, finding: Finding) -> bool:
    """Whether this is the code or the name of the finding's rule."""
    return written.upper() == finding.code or written.replace("_", "-").lower() == finding.rule


@functools.cache
def comments(file: str) -> tuple[Comment, ...]:
    """The comments in a file; none if it is not Python, or not there."""
    try:
        text = Path(file).read_text(encoding="utf-8")
        if "jaxpr-opt:" not in text:
            return ()
        statements = list(_statements(ast.parse(text)))
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (OSError, ValueError, SyntaxError, tokenize.TokenError):
        return ()
    return tuple(_comments(file, tokens, statements))


def _comments(
    file: str, tokens: Iterable[tokenize.TokenInfo], statements: list[tuple[int, int]]
) -> Iterator[Comment]:
    for token in tokens:
        if token.type != tokenize.COMMENT or not (match := COMMENT.search(token.string)):
            continue
        line = token.start[0]
        alone = not token.line[: token.start[1]].strip()
        first, last = _below(line, statements) if alone else _around(line, statements)
        rules = tuple(name.strip() for name in (match["rules"] or "").split(",") if name.strip())
        yield Comment(file, line, rules, first, last)


def _statements(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """First and last line of every statement; of one with a body, of what stands before it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None) or getattr(node, "cases", None)
            last = node.end_lineno or node.lineno
            if body:
                inner = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
                last = max(node.lineno, min(last, inner.lineno - 1))
            yield node.lineno, last


def _around(line: int, statements: list[tuple[int, int]]) -> tuple[int, int]:
    """The smallest statement that has this line."""
    holding = [(first, last) for first, last in statements if first <= line <= last]
    return min(holding, key=lambda lines: lines[1] - lines[0], default=(line, line))


def _below(line: int, statements: list[tuple[int, int]]) -> tuple[int, int]:
    """The statement the line is inside of, or else the next."""
    first, last = _around(line, statements)
    if first < line:
        return first, last
    return min((s for s in statements if s[0] > line), default=(line, line))
