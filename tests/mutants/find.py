"""The mutants of a pass: what it asks before it rewrites, and what if that were not asked.

==============================  ===========================
what is written                 what is tried
==============================  ===========================
``if refused: return ...``      as if it were never so
``a and b``, ``a or b``         ``a`` alone, ``b`` alone
``[x for x in xs if wanted]``   all of `xs`
``x if p else y``               `y` alone, `x` alone
``def f() -> bool: return p``   true, false
``do(x)  # (2)``                nothing
``if p:  # (2)``                as if it were so, as if it were not
``p = x == y  # (2)``           true, false
``phase: ... = ...  # (2)``     that of `Pass`
==============================  ===========================

A comment such as ``# (2)`` says which condition of the docstring its line is part of, or the line
below it; beside the first line of a statement, all of that, beside a ``def``, all of the function.
Where another module asks for a pass, it says for which: ``# Condition 2 of fuse-branches.``
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from mutants.harmless import HARMLESS


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

    @property
    def key(self) -> str:
        """What it is called as long as its function stays as it is."""
        return f"{self.path.stem} {self.number} {self.function} {self.text}"

    @property
    def harmless(self) -> str:
        """Why every program stays right; empty if a test should kill it."""
        return HARMLESS.get(f"{self.path.stem}.{self.function}", {}).get(self.text, "")

    def code(self) -> CodeType:
        """The function it is in, compiled with the change."""
        tree = ast.parse(self.path.read_text())
        change = list(_changes(tree))[self.number]
        change.apply()
        module = compile(ast.fix_missing_locations(tree), str(self.path), "exec")
        return next(c for c in codes(module) if c.co_qualname == self.function)


def mutants(path: Path, asked_by: str = "") -> list[Mutant]:
    """All mutants of a module, in its order; those of what it asks for a pass, if that is given."""
    text = path.read_text()
    tree, cited = ast.parse(text), _cited(text, asked_by)
    made = []
    for number, change in enumerate(_changes(tree)):
        lines = _lines(change)
        numbers = dict.fromkeys(n for line in sorted(lines) for n in cited.get(line, ()))
        if numbers or not (change.only_cited or asked_by):
            place = change.node.lineno, change.function, change.text
            made.append(Mutant(path, number, *place, tuple(numbers)))
    return made + [
        Mutant(path, -line, line, name, f"left out: {name}", tuple(cited[line]))
        for line, name in _attributes(tree)
        if line in cited
    ]


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and all that are nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def numbered(path: Path) -> list[str]:
    """The numbers of the conditions in a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return re.findall(r"^(\d+)\. ", docstring, re.MULTILINE)


def _lines(change: _Change) -> set[int]:
    """The lines whose citations are those of a change: its own, what a guard does, and the first of
    the statement and of the function.
    """
    node, statement = change.node, change.statement
    lines = {*range(node.lineno, (node.end_lineno or 0) + 1), statement.lineno}
    if isinstance(statement, ast.If) and _leaves(statement):
        lines |= {*range(statement.body[0].lineno, (statement.body[-1].end_lineno or 0) + 1)}
    return lines | {*range(change.around.lineno, change.around.body[0].lineno)}


def _cited(text: str, asked_by: str) -> dict[int, list[str]]:
    """The conditions that lines cite; comments on a line of their own are about the next one."""
    cited: dict[int, list[str]] = {}
    above: list[str] = []
    for line, code in enumerate(text.splitlines(), 1):
        numbers = above + _numbers(code, asked_by)
        above = numbers if code.lstrip().startswith("#") else []
        if numbers and not above:
            cited[line] = numbers
    return cited


def _numbers(code: str, asked_by: str) -> list[str]:
    """The conditions that a comment cites, of a pass, or of the module's own."""
    found = re.findall(r"# Conditions? ([\d, ]+)(?: of ([a-z, -]+))?\.$", code)
    groups = [numbers for numbers, names in found if asked_by in names.split(", ")]
    if not asked_by:
        groups += re.findall(r"# \(([\d, ]+)\)", code)
    return [number for group in groups for number in group.split(", ")]


def _attributes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The lines and names of what classes set."""
    for each in tree.body:
        for line in each.body if isinstance(each, ast.ClassDef) else ():
            if isinstance(line, ast.AnnAssign):
                yield line.lineno, f"{each.name}.{ast.unparse(line.target)}"


_BLOCKS = (ast.stmt, ast.match_case)

_Mutation = tuple[ast.expr | ast.Expr, str, ast.AST]
"""What is changed, the change in words, and what is put there."""


@dataclass
class _Change:
    """A place in a tree, and what to put there."""

    node: ast.expr | ast.Expr
    parent: ast.AST
    text: str
    new: ast.AST
    only_cited: bool
    function: str
    statement: ast.stmt
    around: ast.FunctionDef

    def apply(self) -> None:
        for name, value in ast.iter_fields(self.parent):
            if value is self.node:
                setattr(self.parent, name, self.new)
            elif isinstance(value, list):
                value[:] = [self.new if each is self.node else each for each in value]


def _changes(tree: ast.Module) -> Iterator[_Change]:
    for function, qualname in _functions(tree, ""):
        for parent, statement in _walk(function, function):
            for node, text, new in _mutations(parent, function):
                kept = ast.IfExp(
                    ast.Constant(value=True), new, node
                )  # closures keep their variables
                yield _Change(node, parent, text, kept, False, qualname, statement, function)
            for node, text, new in _of_statements(parent):
                within = node if isinstance(node, ast.stmt) else statement
                yield _Change(node, parent, text, new, True, qualname, within, function)


def _walk(node: ast.AST, statement: ast.stmt) -> Iterator[tuple[ast.AST, ast.stmt]]:
    """What is below a node, each with the statement it is in."""
    statement = node if isinstance(node, ast.stmt) else statement
    yield node, statement
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, statement)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    """The functions of a module and the methods of its classes; what is nested is part of them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child, prefix + child.name
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _mutations(parent: ast.AST, function: ast.FunctionDef) -> Iterator[_Mutation]:
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
    test = parent.test if isinstance(parent, ast.IfExp) else _answer(parent, function)
    if test is not None:
        yield from _both(test)


def _of_statements(parent: ast.AST) -> Iterator[_Mutation]:
    """What is tried of statements that cite a condition."""
    if isinstance(parent, ast.If) and not _leaves(parent):
        yield from _both(parent.test)
    if isinstance(parent, ast.Assign) and isinstance(parent.value, ast.Compare):
        yield from _both(parent.value)
    for block in ("body", "orelse"):
        for each in getattr(parent, block, ()) if isinstance(parent, _BLOCKS) else ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
                yield each, f"left out: {_short(each)}", ast.Pass()


def _both(test: ast.expr) -> Iterator[_Mutation]:
    yield test, f"always: {_short(test)}", ast.Constant(value=True)
    yield test, f"never: {_short(test)}", ast.Constant(value=False)


def _answer(node: ast.AST, function: ast.FunctionDef) -> ast.expr | None:
    """What a function that says yes or no returns, if it is one question."""
    if not isinstance(function.returns, ast.Name) or function.returns.id != "bool":
        return None
    if not isinstance(node, ast.Return) or isinstance(node.value, ast.BoolOp | ast.Constant):
        return None
    return node.value


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
