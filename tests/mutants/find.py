"""The mutants of a pass: what it asks before it rewrites, and what if that were not asked.

==============================  ===========================
what is written                 what is tried
==============================  ===========================
``if refused: return ...``      as if it were never so
``a and b``, ``a or b``         ``a`` alone, ``b`` alone
``[x for x in xs if wanted]``   all of `xs`
``x if p else y``               `y` alone, `x` alone
==============================  ===========================

Comments such as ``# (2)`` say which condition of the docstring a line is; a mutant has the numbers
of its lines, or those of the function around it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType


@dataclass(frozen=True)
class Mutant:
    """One change to a module."""

    path: Path
    number: int
    line: int
    function: str
    text: str
    conditions: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.path.stem}:{self.line} {self.text}"

    def code(self) -> CodeType:
        """The function it is in, compiled with the change."""
        tree = ast.parse(self.path.read_text())
        change = list(_changes(tree))[self.number]
        change.apply()
        module = compile(ast.fix_missing_locations(tree), str(self.path), "exec")
        return next(c for c in _codes(module) if c.co_qualname == self.function)


def mutants(path: Path) -> list[Mutant]:
    """All mutants of a module, in its order."""
    text = path.read_text()
    cited = _cited(text)
    made = []
    for number, change in enumerate(_changes(ast.parse(text))):
        lines = range(change.node.lineno, (change.node.end_lineno or 0) + 2)
        numbers = dict.fromkeys(n for line in lines for n in cited.get(line, ()))
        around = range(change.around.lineno - 1, (change.around.end_lineno or 0) + 1)
        numbers = numbers or dict.fromkeys(n for line in around for n in cited.get(line, ()))
        made.append(
            Mutant(path, number, change.node.lineno, change.function, change.text, tuple(numbers))
        )
    return made


def numbered(path: Path) -> list[str]:
    """The numbers of the conditions in a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return re.findall(r"^(\d+)\. ", docstring, re.MULTILINE)


def _cited(text: str) -> dict[int, list[str]]:
    cited = {}
    for line, code in enumerate(text.splitlines(), 1):
        for group in re.findall(r"#.*?\(([\d, ]+)\)", code):
            cited.setdefault(line, []).extend(re.findall(r"\d+", group))
    return cited


@dataclass
class _Change:
    """A place in a tree, and what to put there."""

    node: ast.expr
    parent: ast.AST
    text: str
    new: ast.expr
    function: str
    around: ast.AST

    def apply(self) -> None:
        for name, value in ast.iter_fields(self.parent):
            if value is self.node:
                setattr(self.parent, name, self.new)
            elif isinstance(value, list):
                value[:] = [self.new if each is self.node else each for each in value]


def _changes(tree: ast.Module) -> Iterator[_Change]:
    for function, qualname in _functions(tree, ""):
        for parent in ast.walk(function):
            for node, text, new in _mutations(parent):
                yield _Change(node, parent, text, new, qualname, function)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    """The functions of a module and the methods of its classes; what is nested is part of them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child, prefix + child.name
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _mutations(parent: ast.AST) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    if isinstance(parent, ast.If) and _leaves(parent):
        yield parent.test, f"never: {_short(parent.test)}", ast.Constant(value=False)
    if isinstance(parent, ast.BoolOp) and not any(map(_is_text, parent.values)):
        neutral = isinstance(parent.op, ast.And)
        word = "and" if neutral else "or"
        for value in parent.values:
            yield value, f"without: {word} {_short(value)}", ast.Constant(value=neutral)
    if isinstance(parent, ast.comprehension):
        for test in parent.ifs:
            yield test, f"all, not only if {_short(test)}", ast.Constant(value=True)
    if isinstance(parent, ast.IfExp):
        yield parent.test, f"always: {_short(parent.test)}", ast.Constant(value=True)
        yield parent.test, f"never: {_short(parent.test)}", ast.Constant(value=False)


def _is_text(node: ast.expr) -> bool:
    """Whether an operand is part of a message."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "str"
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _leaves(node: ast.If) -> bool:
    """Whether a guard: it leaves the function or the round of a loop."""
    return isinstance(node.body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)


def _short(node: ast.expr) -> str:
    return re.sub(r"\s+", " ", ast.unparse(node))[:90]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
