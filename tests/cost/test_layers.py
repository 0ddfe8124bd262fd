"""The cost model knows the graph and nothing above it; nothing else knows prices."""

import re
from pathlib import Path

import pytest

import jaxpr_opt
from tests.imports import imported

HOME = Path(jaxpr_opt.__file__).parent
BELOW = {
    "ir.dataflow", "ir.facts", "ir.graph", "ir.importer", "ir.nesting", "ir.traits",
    "bridge.compat_devices", "bridge.parameters",
}  # fmt: skip
"""What the model may import: the graph, what is known of primitives, and how answers are kept."""


@pytest.mark.parametrize("path", sorted((HOME / "cost").glob("*.py")), ids=lambda path: path.name)
def test_the_model_knows_the_graph_only(path):
    names = {name.removeprefix("jaxpr_opt.") for name in imported(path, types=True)}
    assert all(name.split(".")[0] == "cost" for name in names - BELOW)


ASKING = sorted([*(HOME / "passes").rglob("*.py"), *(HOME / "analysis").rglob("*.py")])
FIGURE = re.compile(r"^([A-Z_]+(?:, [A-Z_]+)*)(?:: \w+)? = [-\d(]*\d", re.MULTILINE)
SHOWN = {"NOTABLE", "TOLD", "TOLERANCE", "UNKNOWN_TIMES"}
"""How much of a result people see: no price, as nothing is decided by it."""


@pytest.mark.parametrize("path", ASKING, ids=lambda path: path.name)
def test_nothing_else_has_figures_of_its_own(path):
    """A pass or an analysis asks the model, or keeps a limit of `jaxpr_opt.cost.limits`."""
    assert set(FIGURE.findall(path.read_text())) <= SHOWN
