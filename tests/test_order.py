"""Passes say what they must be tried after; everything else may change places within a stage."""

import random
from collections import Counter

import jax
import networkx as nx
import pytest
from jax.extend.core import jaxpr_as_fun

from bench import everyday
from bench.corpus import of_examples
from bench.everyday.entry import summed
from jaxpr_opt import settings
from jaxpr_opt.engine import registry
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.insight.journal import Journal
from jaxpr_opt.insight.summary import summarize
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import assert_close, random_inputs
from tests.sets import some

PIPELINE = registry.default_pipeline()
NAMES = [
    "tridiagonal",
    "kalman",
    "prefix sums",
    "slices, write or not",
    "slices, ragged batch",
    "trajectories",
    "KV cache, gradient",
    "multiplied in place",
    "reservoir",
    "vmap of scan and cond",
    "bounded while, nested",
]
"""Programs in which passes of one stage meet."""


def test_the_pipeline_has_the_declared_order():
    for stage in PIPELINE.stages:
        names = [each.name for each in stage]
        for each in stage:
            for first, why in each.after:
                assert first not in names or names.index(first) < names.index(each.name), why


def test_declarations_name_passes_of_the_same_stage():
    """So that none is left behind when passes are renamed or moved."""
    for each in PIPELINE.passes:
        for first, _ in each.after:
            assert any({each.name, first} <= {p.name for p in stage} for stage in PIPELINE.stages)


@pytest.mark.parametrize("name", some(NAMES))
def test_other_orders_keep_as_little(name):
    """And compute the same; how many ops are left may differ by what costs nothing."""
    entry = everyday.PROGRAMS.get(name) or dict(of_examples())[name]()
    jaxpr = jax.make_jaxpr(jax.value_and_grad(summed(entry.function)))(*entry.arguments)
    as_declared = optimized(PIPELINE, jaxpr)
    kept = summarize(as_declared)
    orders = [optimized(shuffled(seed), jaxpr) for seed in range(3)]
    for graph in orders:
        found = summarize(graph)
        assert found.residual_bytes <= 1.01 * kept.residual_bytes
        assert found.peak_bytes <= 1.01 * kept.peak_bytes
        assert structure(graph) == structure(as_declared)
    args = random_inputs(jaxpr.in_avals)
    assert_close(*(jax.jit(jaxpr_as_fun(export(g)))(*args) for g in (as_declared, orders[0])))


def structure(graph):
    """How many loops, branches and calls there are of each kind."""
    return Counter(op.name for op in graph.walk() if op.regions)


def shuffled(seed):
    """The pipeline with each stage in an order of its own that the declarations allow."""
    return Pipeline(tuple(_shuffled(stage, random.Random(seed)) for stage in PIPELINE.stages))


def _shuffled(stage, rng):
    stage = rng.sample(stage, len(stage))
    by_name = {each.name: each for each in stage}
    order = nx.DiGraph()
    order.add_nodes_from(by_name)
    order.add_edges_from(
        (first, each.name) for each in stage for first, _ in each.after if first in by_name
    )
    names = nx.lexicographical_topological_sort(order, key=list(by_name).index)
    return tuple(by_name[name] for name in names)


def optimized(pipeline, jaxpr):
    with settings.override(verify=False):  # other tests look at every pass
        graph = import_jaxpr(jaxpr, "final")
        pipeline.apply(graph, Journal("final"))
    return graph
