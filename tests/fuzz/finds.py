"""The file of a find: the smallest program that goes wrong, as a test that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzz import saved
from fuzz.check import Difference, Plan
from fuzz.corpus import Seed
from fuzz.shrink import shrunk
from fuzz.source import UnprintableError, source
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.ir.text import to_text

PASSES = (
    "The test below passes: JAX traces its program to another graph, or it differs on other\n"
    "arguments only. The graph that goes wrong is _TEXT."
)
"""What a file says whose test does not fail."""
HEADER = (
    "from jax import lax\nimport jax\nimport numpy as np\n"
    "from fuzz.saved import bind, check_saved, check_transformed, dtype, murmur, number\n"
    "from fuzz.saved import kept, say, undefined, weak\n"
    "inf, nan = float('inf'), float('nan')\n"
)


@dataclass(frozen=True)
class Find:
    """What went wrong, with which program and which passes; ``call`` is what its test does."""

    seed: Seed
    plan: Plan
    found: Difference
    call: str | None = None

    def file(self, graph: Graph, note: str = "") -> str:
        """The file of a program that goes wrong in the same way."""
        return report(self.seed, self.plan, self.found, graph, self.call, note)

    def fails_as_saved(self, graph: Graph) -> bool:
        """Whether the test in the file of a program fails: JAX traces its source again."""
        return saved.kind_of_failure(self.file(graph)) == self.found.kind


def smallest(find: Find, fails: Callable[[Graph], bool]) -> str:
    """The file of the smallest program found; its test fails if that of a larger one does."""
    graph = find.seed.graph
    does_test_fail = find.fails_as_saved(graph)

    def is_kept(smaller: Graph) -> bool:
        nonlocal does_test_fail
        if not fails(smaller):
            return False
        did, does = does_test_fail, find.fails_as_saved(smaller)
        does_test_fail = did or does
        return does or not did

    if fails(graph):
        graph = shrunk(graph, is_kept)
    return find.file(graph, "" if does_test_fail else PASSES)


def report(
    seed: Seed,
    plan: Plan,
    found: Difference,
    graph: Graph,
    call: str | None = None,
    note: str = "",
) -> str:
    """A test of a program, with what is known of it."""
    about = f"{found.kind}: {found.text}\n\n{plan.label}, phase {plan.phase}\nfrom {seed.origin}"
    about = about.replace("\\", "/").replace('"""', "'''")
    text = to_text(graph)
    try:
        program = source(graph)
    except UnprintableError as error:
        return f'"""{about}\n\nCannot be written as source: {error}\n\n{text}"""\n'
    about += f"\n\n{note}" * bool(note)
    types = [f"{v.dtype}[{','.join(map(str, v.shape))}]" for v in graph.inputs]
    call = (call or _call(plan, found)).replace("TYPES", repr(types))
    return (
        f'"""{about}\n"""\n\n{HEADER}\n\n{program}\n\n'
        f"def test_it():\n    {call}\n\n\n_TEXT = '''\n{text}\n'''\n"
    )


def _call(plan: Plan, found: Difference) -> str:
    """The check of a program and what passes make of it."""
    name = "whole" if len(plan.pipeline.stages) > 1 else plan.label
    tidied = len(plan.pipeline.passes) > 1 and name != "whole"
    how = f"tidied={tidied}" + ", lanes=True" * plan.lanes
    how += ", compiled=True" * (found.kind == "compiled")
    return f"check_saved(program, TYPES, {name!r}, {plan.phase!r}, {how})"
