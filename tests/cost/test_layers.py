"""The cost model knows the graph and nothing above it."""

import ast
from pathlib import Path

import pytest

import jaxpr_opt

HOME = Path(jaxpr_opt.__file__).parent
BELOW = {
    "analysis.facts", "analysis.inputs", "compat_devices", "importer", "ir", "parameters", "traits",
}  # fmt: skip
"""What the model may import: the graph, what is known of primitives, and how answers are kept."""


def imported(path):
    """The modules of jaxpr_opt that a file imports, in functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("jaxpr_opt"):
            inside = node.module.removeprefix("jaxpr_opt").removeprefix(".")
            yield from [inside] if inside else (alias.name for alias in node.names)


@pytest.mark.parametrize("path", sorted((HOME / "cost").glob("*.py")), ids=lambda path: path.name)
def test_the_model_knows_the_graph_only(path):
    above = {name for name in imported(path) if name not in BELOW}
    assert all(name.split(".")[0] == "cost" for name in above)
