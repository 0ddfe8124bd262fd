"""The same programs with arrays of no elements, and of one along an axis that had more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from fuzz import corpus
from fuzz.mutations.places import copy_of
from jaxpr_opt.bridge import compat
from jaxpr_opt.ir import exporter
from jaxpr_opt.ir.graph import Constant, Graph, Op, Scan
from jaxpr_opt.ir.importer import import_jaxpr

SIZES = (0, 0, 1)
SHAPES = ("shape", "new_sizes", "limit_indices", "slice_sizes", "sizes", "window_dimensions")
"""Parameters that hold sizes, and no numbers of axes."""


def resized(seed: corpus.Seed, rng: random.Random) -> corpus.Seed | None:
    """The program with one size in place of another; None if JAX does not trace it."""
    old = sorted(_sizes(seed.graph) - {0, 1})
    if not old:
        return None
    was, now = rng.choice(old), rng.choice(SIZES)
    try:
        made = import_jaxpr(_in_size(seed.graph, was, now))
    except Exception:  # noqa: BLE001 - it is no program in many ways
        return None
    if any(op.name == "reshape" and op.operands[0].size != op.result.size for op in made.walk()):
        return None  # JAX does not look
    made.phase = seed.graph.phase
    return corpus.Seed(made, f"{now} for {was} in {seed.origin}", seed.aimed_at)


def _sizes(graph: Graph) -> set[int]:
    """The sizes of arguments, and how many steps loops take."""
    steps = {op.length for op in graph.walk() if isinstance(op, Scan)}
    return {n for n in steps.union(*(v.shape for v in graph.inputs)) if isinstance(n, int)}


def _in_size(graph: Graph, old: int, new: int) -> Any:
    made, _ = copy_of(graph)

    def renewed(shape: Any) -> tuple[int, ...]:
        return tuple(new if n == old else n for n in shape)

    for op in made.walk():
        for name in SHAPES:
            if isinstance(op.params.get(name), tuple):
                op.params[name] = renewed(op.params[name])
        if isinstance(op, Scan) and op.length == old:
            op.params["length"] = new
        for value in _values(op):
            if isinstance(value, Constant) and old in value.shape:
                value.value = value.value[tuple(slice(n) for n in renewed(value.shape))]
            if old in getattr(value.aval, "shape", ()):
                value.aval = value.aval.update(shape=renewed(value.shape))
    avals = [v.aval.update(shape=renewed(v.shape)) for v in made.inputs]
    jaxpr = compat.trace(lambda *args: exporter.evaluate(made.body, args, {}), avals)
    compat.check_jaxpr(jaxpr)
    return jaxpr


def _values(op: Op) -> Iterator[Any]:
    yield from op.operands
    yield from op.results
    for region in op.regions:
        yield from region.params
