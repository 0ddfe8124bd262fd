"""Modules depend on each other in one direction only, imports inside functions included."""

import networkx as nx

from tests.imports import MODULES, imported


def test_no_import_circles():
    """What `import jaxpr_opt` promises its users is no module's to import."""
    graph = nx.DiGraph()
    for name, path in MODULES.items():
        graph.add_edges_from((name, owner) for owner in imported(path) if owner != name)
    assert graph.number_of_edges() > 500
    circles = [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    assert not circles
