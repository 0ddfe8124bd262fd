"""Small changes to a program, most of them near a condition of some pass.

Each keeps the program well typed.  It says whether it found a place to change.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from jax import lax

from fuzz.mutations.effects import say
from fuzz.mutations.operands import combine, communicate, compute, negate, renumber, rewire, shift
from fuzz.mutations.operations import duplicate, replace_primitive, reverse, swap, swap_branches
from fuzz.mutations.places import copy_of
from fuzz.mutations.regions import carry, expose, under_a_cond
from fuzz.mutations.writes import touch
from jaxpr_opt.ir.graph import Graph, Source
from jaxpr_opt.ir.rewriter import Rewriter

Mutation = Callable[[Graph, Rewriter, random.Random], bool]


def forget_transposes(graph: Graph) -> None:
    """Make of a derivative a program like any other, of which nothing is known to be linear."""
    for op in graph.walk():
        op.source = Source()


def keep_promises(graph: Graph) -> None:
    """Take back what a program promises of its indices: they are about to change."""
    for op in graph.walk():
        if "unique_indices" in op.params:
            op.params["unique_indices"] = False
        if "indices_are_sorted" in op.params:
            op.params["indices_are_sorted"] = False
        mode = op.params.get("mode")
        if isinstance(mode, lax.GatherScatterMode) and mode.name == "PROMISE_IN_BOUNDS":
            safe = lax.GatherScatterMode
            op.params["mode"] = safe.CLIP if op.name == "gather" else safe.FILL_OR_DROP


MUTATIONS: tuple[Mutation, ...] = (
    rewire, rewire, rewire, renumber, shift, shift, compute, negate, combine, combine,
    replace_primitive, replace_primitive, swap, duplicate, reverse, swap_branches, expose, expose,
    carry, under_a_cond, touch, touch, say,
)  # fmt: skip
"""All of them, those that find most more than once."""


def mutated(
    graph: Graph, rng: random.Random, lanes: bool = False, count: int | None = None
) -> tuple[Graph, list[str]]:
    """A copy of a program with a few changes, and their names; perhaps of one that several devices
    run in step.
    """
    made, rw = copy_of(graph)
    if count != 0 and any(op.source.transposed for op in made.walk()) and rng.random() < 0.5:
        forget_transposes(made)
    keep_promises(made)
    names = []
    count = rng.choice((1, 1, 1, 2, 2, 3, 5)) if count is None else count
    for _ in range(count):
        each = rng.choice((*MUTATIONS, *((communicate,) * 4 if lanes else ())))
        if each(made, rw, rng):
            names.append(each.__name__)
    return made, names
