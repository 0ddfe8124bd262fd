"""Modules depend on each other in one direction only, imports inside functions included."""

import ast
from pathlib import Path

import networkx as nx

import jaxpr_opt

PACKAGE = Path(jaxpr_opt.__file__).parent


def modules():
    """Every module of the package by name."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = (PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(path):
    """What a module imports, wherever in it that is written, but for type checkers only."""
    pending = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        pending.extend(ast.iter_child_nodes(node))


def test_no_import_circles():
    """What `import jaxpr_opt` promises its users is no module's to import."""
    known = dict(modules())
    graph = nx.DiGraph()
    for name, path in known.items():
        for found in imported(path):
            owner = found if found in known else found.rpartition(".")[0]
            if owner in known and owner != name:
                graph.add_edge(name, owner)
    assert graph.number_of_edges() > 500
    circles = [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    assert not circles
