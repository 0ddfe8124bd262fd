"""Which modules of the package import which."""

import ast
from pathlib import Path

import jaxpr_opt

PACKAGE = Path(jaxpr_opt.__file__).parent


def _named():
    linked = PACKAGE / "passes"  # `rglob` does not follow links
    for path in sorted({*PACKAGE.rglob("*.py"), *linked.rglob("*.py")}):
        parts = (PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(_named())
"""Every module by name."""


def imported(path, types=False):
    """The modules of the package that a file imports, wherever in it that is written; those for
    type checkers alone where they are asked for.
    """
    for name in _written(ast.parse(path.read_text()), types):
        owner = name if name in MODULES else name.rpartition(".")[0]
        if owner in MODULES:
            yield owner


def _written(node, types):
    if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from _written(child, types)
