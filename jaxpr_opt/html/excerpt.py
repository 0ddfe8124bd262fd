"""Which lines of a file are shown: the functions around those that matter."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

AROUND = 3
"""Lines shown on either side of one outside of any function."""
JOINED = 2
"""So few lines between two excerpts are shown as well."""

Span = tuple[int, int]
"""First and last line, counted from one."""


def spans(text: str, lines: Iterable[int]) -> list[Span]:
    """The functions around the lines, whole; outside of functions a few lines around each."""
    count = len(text.splitlines())
    functions = list(_functions(text))
    wanted = [
        next(
            ((first, last) for first, last in functions if first <= line <= last),
            (max(1, line - AROUND), min(count, line + AROUND)),
        )
        for line in lines
        if line <= count  # the file may have changed since
    ]
    merged: list[Span] = []
    for first, last in sorted(wanted):
        if merged and first <= merged[-1][1] + 1 + JOINED:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def _functions(text: str) -> Iterator[Span]:
    """The outermost functions of a file, with their decorators; methods by themselves."""
    try:
        pending: list[ast.AST] = [ast.parse(text)]
    except SyntaxError:
        return
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                yield first, node.end_lineno or node.lineno
            else:
                pending.append(node)
