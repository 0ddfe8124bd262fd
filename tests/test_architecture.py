"""Modules depend on each other in one direction only, imports inside functions included."""

import re

import networkx as nx
import pytest

from tests.imports import MODULES, PACKAGE, imported

LAYERS = """
errors version settings sizes frames printing stderr
bridge
ir
cost
analysis.values
analysis.windows
analysis.masks
analysis.sparse
analysis.rows
analysis.writes
analysis.carried
analysis.batches analysis.in_place
analysis.steps
analysis.residuals
analysis.liveness
analysis.scalars
insight
builders
builders.windows builders.masks builders.sparse builders.steps
builders.writes builders.rows builders.carried builders.batches builders.residuals builders.in_place
memory
engine
passes
boundary
donation
optimized decorator every_program
saving
targets
reports
lint
testing html
run
cli
"""
"""The folders and modules of the package, the lowest first, as `docs/design.md` lists them."""


def _layer(name):
    """The number of a module's layer; None for the package itself, which hands names on."""
    rows = [row.split() for row in LAYERS.strip().splitlines()]
    inside = name.removeprefix("jaxpr_opt").removeprefix(".") + "."
    found = {each: k for k, row in enumerate(rows) for each in row if inside.startswith(f"{each}.")}
    return found[max(found, key=len)] if found else None


def test_imports_point_down():
    """A module may import its own layer, and lower ones; every module is in one."""
    known = {name: _layer(name) for name in MODULES}
    assert {name for name in MODULES if known[name] is None} == {
        "jaxpr_opt", "jaxpr_opt.__main__", "jaxpr_opt.analysis"
    }  # fmt: skip
    up = [
        f"{name} imports {owner}"
        for name, path in MODULES.items()
        for owner in imported(path, types=True)
        if None not in (known[name], known[owner]) and known[owner] > known[name]
    ]
    assert not up


def test_no_import_circles():
    """What `import jaxpr_opt` promises its users is no module's to import."""
    graph = nx.DiGraph()
    for name, path in MODULES.items():
        graph.add_edges_from((name, owner) for owner in imported(path) if owner != name)
    assert graph.number_of_edges() > 500
    circles = [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    assert not circles


INNER = [name.replace(".", "/") for name in LAYERS.split() if "." in name]
FOLDERS = ["analysis", *INNER, "boundary", "bridge", "builders", "cost", "ir"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_says_what_each_of_its_modules_is(folder):
    """The table in its `__init__` names every module, and no other."""
    place = PACKAGE / folder
    table = (place / "__init__.py").read_text()
    modules = {path.stem for path in place.iterdir() if path.stem[0] != "_"}
    named = set(re.findall(r"^(?:`\w+`(?:, )?)+", table, re.MULTILINE))
    assert {name for row in named for name in re.findall(r"`(\w+)`", row)} == modules


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in (PACKAGE / "passes").glob("**/__init__.py"))
)
def test_a_folder_of_passes_says_what_each_of_them_does(folder):
    """In its `__init__`."""
    named = set(re.findall(r"`([\w-]+)`", (folder / "__init__.py").read_text()))
    modules = {path.stem.replace("_", "-") for path in folder.glob("[a-z]*.py")}
    assert modules and named >= modules


def test_a_pass_fits_on_a_few_screens():
    """What a pass needs beyond that is an analysis or a builder, with a name of its own."""
    long = {
        path.name: lines
        for path in (PACKAGE / "passes").rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 200
    }
    assert not long
