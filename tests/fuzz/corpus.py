"""Programs to begin with: those of the passes' own tests, and random recipes.

The tests are run by pytest, but what would check a program only takes it down.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import jax
import pytest
from hypothesis import strategies as st
from jax.extend.core import ClosedJaxpr

import jaxpr_opt.testing
import tests.loops
from jaxpr_opt.engine import registry
from jaxpr_opt.engine.interface import Pass
from jaxpr_opt.ir.graph import Graph, Op, Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.traits import may_not_end
from jaxpr_opt.testing import traced

CHECKS = ("check_rewrite(", "check_refuses(", "alone(")
_NONE = pytest.ExitCode.NO_TESTS_COLLECTED
LARGEST = 2000
"""Ops that a program may run: the others are for tests of growth."""
TESTS = Path(jaxpr_opt.testing.__file__).parents[2] / "tests"


@dataclass(frozen=True, eq=False)
class Seed:
    """A program, where it is from, and the pass that it is made for, if any."""

    graph: Graph
    origin: str
    aimed_at: Pass | None = None
    lanes: bool = False
    """Whether several devices run it in step (`fuzz.lanes`)."""

    @functools.cached_property
    def size(self) -> int:
        """How many ops are run, more or less; arrays that are large count as many."""
        return sum(_cost(op) for op in self.graph.walk())

    @functools.cached_property
    def is_double(self) -> bool:
        """Whether it computes in 64 bits."""
        values = [v for op in self.graph.walk() for v in (*op.operands, *op.results)]
        names = {str(v.dtype) for v in values}
        return any(
            (name.endswith("64") and name != "complex64") or name == "complex128" for name in names
        )


def _cost(op: Op) -> int:
    steps, around = 1, op.parent
    while around is not None:
        if around.name == "shard_map" and may_not_end(op):
            return LARGEST  # JAX runs it, and a changed one may not end
        steps *= max(around.length, 1) if isinstance(around, Scan) else 1
        around = around.parent
    return steps * (1 + sum(v.size for v in op.results) // 1000)


def test_files() -> list[Path]:
    """Files of tests that check programs."""
    return sorted((TESTS / "passes").glob("test_*.py"))


class _Recorder:
    """A plugin of pytest: runs the tests that check a program, and keeps it."""

    def __init__(self) -> None:
        self.seeds: list[Seed] = []
        self.test = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [i for i in items if any(c in inspect.getsource(i.function) for c in CHECKS)]

    def pytest_runtest_call(self, item: Any) -> None:
        self.test = item.nodeid

    def take(self, each: Pass | str, program: Any, *args: Any, **_: Any) -> None:
        """Stands in for a check."""
        aimed_at = registry.named(each) if isinstance(each, str) else each
        graph = import_jaxpr(traced(program, *args), aimed_at.phase)
        seed = Seed(graph, self.test, aimed_at)
        if seed.size < LARGEST:
            self.seeds.append(seed)


def from_tests(files: Sequence[Path]) -> list[Seed]:
    """The programs that the tests in these files check; none, if they check in another way."""
    if not files:
        return []  # pytest would run all tests that there are
    recorder, said = _Recorder(), io.StringIO()
    options = ["-q", "-n0", "-p", "no:cacheprovider", "--no-header", "--tb=line", "-Wignore"]
    with _replaced(recorder.take), contextlib.redirect_stdout(said):
        code = pytest.main([*options, *map(str, files)], plugins=[recorder])
    if code not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, _NONE}:
        raise RuntimeError(f"tests are not run: {said.getvalue()}")
    return recorder.seeds


@contextlib.contextmanager
def _replaced(take: Callable[..., None]) -> Iterator[None]:
    """Checks that only take programs down, for test modules that are imported inside."""
    places = [(jaxpr_opt.testing, "check_rewrite"), (jaxpr_opt.testing, "check_refuses")]
    places.append((tests.loops, "alone"))
    kept = [getattr(module, name) for module, name in places]
    for module, name in places:
        setattr(module, name, take)
    try:
        yield
    finally:
        for (module, name), value in zip(places, kept, strict=True):
            setattr(module, name, value)


def recipes(count: int, rng: random.Random) -> list[tuple[Callable[..., Any], Any]]:
    """That many random recipes, and arguments to trace them on."""
    from tests.generate import BUFFERS, HANDS, NAMES, RECIPES, TABLES, arguments

    drawn: list[Any] = []

    @hypothesis.seed(rng.getrandbits(32))
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.one_of(RECIPES, BUFFERS, TABLES, NAMES, HANDS))
    def draw(recipe: Any) -> None:
        drawn.append(recipe)

    draw()
    return [(recipe, arguments(2, 0.7)) for recipe in drawn]


def from_jaxpr(jaxpr: ClosedJaxpr, origin: str) -> Seed:
    """A program aimed at no pass."""
    return Seed(import_jaxpr(jaxpr), origin)


def from_recipes(count: int, rng: random.Random) -> list[Seed]:
    """Random recipes, and their derivatives."""
    from tests.test_generated import MODES, batched

    seeds = []
    for recipe, args in recipes(count, rng):
        mode = rng.choice(["values", "values", "grad", "grad", "jvp"])
        with contextlib.suppress(ValueError, NotImplementedError, TypeError):  # no such derivative
            jaxpr = jax.make_jaxpr(batched(MODES[mode](recipe), "none"))(*args)
            seed = from_jaxpr(jaxpr, f"{mode} of {recipe!r}")
            seeds += [seed] if seed.size < LARGEST else []
    return seeds
