"""The cost model knows the graph and nothing above it; nothing else knows prices."""

import ast
import re
from pathlib import Path

import pytest

import jaxpr_opt

HOME = Path(jaxpr_opt.__file__).parent
BELOW = {
    "analysis.facts", "analysis.inputs", "bridge", "bridge.compat_devices", "bridge.parameters",
    "engine.importer", "engine.ir", "engine.traits",
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


ASKING = sorted([*(HOME / "passes").glob("*.py"), *(HOME / "analysis").glob("*.py")])
FIGURE = re.compile(r"^([A-Z_]+(?:, [A-Z_]+)*)(?:: \w+)? = [-\d(]*\d", re.MULTILINE)
SHOWN = {"NOTABLE", "TOLD", "TOLERANCE", "UNKNOWN_TIMES"}
"""How much of a result people see: no price, as nothing is decided by it."""


@pytest.mark.parametrize("path", ASKING, ids=lambda path: path.name)
def test_nothing_else_has_figures_of_its_own(path):
    """A pass or an analysis asks the model, or keeps a limit of `jaxpr_opt.cost.limits`."""
    assert set(FIGURE.findall(path.read_text())) <= SHOWN
