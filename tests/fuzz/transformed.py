"""Derivatives and batches of an optimised program, and optimised derivatives and batches, are what
JAX makes of the program as it is, up to rounding.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

import jaxpr_opt.boundary.rules  # noqa: F401 - what JAX does with optimised programs
from fuzz import check, lanes
from fuzz.derive import TRANSFORMATIONS
from fuzz.elementwise import PLAIN
from fuzz.evaluate import Evaluator
from fuzz.firstorder import OTHER_GARBAGE
from jaxpr_opt import settings
from jaxpr_opt.boundary.program import Program
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Cond, Graph
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import assert_close

WAYS = ("grad", "grad", "jvp", "hvp", "vmap", "grad of vmap", "vmap of grad", "remat", "scan",
        "none")  # fmt: skip
NARROW = 0.1
"""How far apart results may be, of the largest, if some numbers have fewer bits than float32."""
INVALID = (TypeError, ValueError, NotImplementedError, IndexError, RuntimeError, NameError)
"""What JAX raises of programs that it cannot transform."""


@dataclasses.dataclass(frozen=True)
class Way:
    """A transformation, and whether it is of the optimised program or optimised itself."""

    how: str
    inside: bool
    seed: int

    @property
    def label(self) -> str:
        """How a user would write it."""
        return f"optimize({self.how}(f))" if self.inside else f"{self.how}(optimize(f))"

    @property
    def differentiates(self) -> bool:
        """Whether it has a backward pass."""
        return not {"grad", "hvp", "remat"}.isdisjoint(self.how.split(" of "))

    def __call__(self, fun: Callable[..., Any], avals: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """The transformed function, and the types of what it takes."""
        rng = random.Random(self.seed)
        given: Sequence[Any] = avals
        for each in reversed(self.how.split(" of ")):
            fun, given = _applied(each, fun, given, rng)
        return fun, given


def _applied(how: str, fun: Any, avals: Sequence[Any], rng: random.Random) -> Any:
    if how == "none":
        return fun, avals
    if how == "hvp":
        fun, avals = TRANSFORMATIONS["grad"](fun, avals, rng)
        how = "jvp"
    if how == "devices":
        specs = [jax.ShapeDtypeStruct((lanes.LANES, *a.shape), a.dtype) for a in avals]
        return jax.vmap(fun, axis_name=lanes.AXIS), specs
    made, avals = TRANSFORMATIONS[how](fun, avals, rng)
    return lambda *args: jax.tree.leaves(made(*args)), avals


def way(rng: random.Random, on_devices: bool) -> Way:
    """Some transformation."""
    how = "devices of " * on_devices + rng.choice(WAYS)
    return Way(how, rng.random() < 0.5, rng.getrandbits(32))


def check_way(graph: Graph, each: Way, arrays: np.random.Generator) -> check.Outcome:
    """Compare what JAX makes of a program with what it makes of the optimised one."""
    pipeline = check.whole("differentiable").pipeline
    avals = [v.aval for v in graph.inputs]
    try:
        fun, specs = each(jaxpr_as_fun(export(graph)), avals)
        before = jax.make_jaxpr(fun)(*specs)
    except INVALID:
        return check.Outcome(is_valid=False)
    label = each.label
    try:
        with settings.override(strict=True, verify=False):
            if each.inside:
                ours = before
            else:
                optimised = Program.optimized(export(graph), pipeline, "f")
                fun, _ = each(optimised, avals)
                ours = jax.make_jaxpr(fun)(*specs)
            first = pipeline.run(ours).jaxpr
            final = pipeline.run(first, "final").jaxpr
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the find
        return check.Outcome(difference=check.Difference("fault", f"{label}: {error}"))
    outcome = check.Outcome(("transformed",))
    graphs = [import_jaxpr(each, "final") for each in (before, final)]
    for args in check.arguments(graphs[0], arrays):
        found = _compared(graphs, args, each)
        outcome.difference = outcome.difference or found
    return outcome


def _compared(graphs: Sequence[Graph], args: Sequence[Any], way: Way) -> check.Difference | None:
    label = way.label
    try:
        with _cases_in_range():
            want, said = check.heard(Evaluator(graphs[0]), args)
        if check.has_unspecified(graphs[0]):
            other = check.heard(Evaluator(graphs[0], OTHER_GARBAGE), args)
            if check.difference(want, said, *other, lenient=False):
                return None
    except Exception:  # noqa: BLE001 - what it was cannot be run
        return None
    try:
        got, repeated = check.heard(Evaluator(graphs[1]), args)
    except Exception as error:  # noqa: BLE001 - it cannot be run any more
        return check.Difference("values", f"{label}: {type(error).__name__}: {error}", args)
    if not all(map(check.is_finite, want)) or _is_large(want):
        return None
    if not way.inside and "vmap" in way.how and _says_in_branch(graphs[0]):
        said, repeated = [], []  # JAX takes all branches, and what is known in one is said of all
    if not way.inside and way.differentiates:  # JAX moves what a loop says in every step before it
        said, repeated = sorted({*said[1:]}), sorted({*repeated[1:]})
    try:
        assert_close(want, got, rtol=NARROW if check.has_narrow_floats(graphs[0]) else None)
        np.testing.assert_allclose(repeated, said, rtol=1e-3, atol=1e-3)
    except AssertionError as error:
        return check.Difference("values", f"{label}: {error}", args)
    return None


@contextlib.contextmanager
def _cases_in_range() -> Iterator[None]:
    """A select of a case that it does not have cannot be run: JAX takes the last case, but its
    gradient is that of none.
    """
    select = PLAIN["select_n"]

    def checked(which: np.ndarray[Any, Any], *cases: np.ndarray[Any, Any]) -> Any:
        if which.dtype != bool and not ((which >= 0) & (which < len(cases))).all():
            raise ValueError("a case that a select does not have")
        return select(which, *cases)

    PLAIN["select_n"] = checked
    try:
        yield
    finally:
        PLAIN["select_n"] = select


def _says_in_branch(graph: Graph) -> bool:
    """Whether a callback is in a branch, or was before JAX made it a select."""
    return any(op.effects for op in graph.walk()) and any(
        isinstance(op, Cond) or op.name == "select_n" for op in graph.walk()
    )


def _is_large(values: Sequence[Any]) -> bool:
    """Whether rounding may be all there is to be seen."""
    floats = [x for x in values if getattr(x, "dtype", None) in (np.float32, np.float64)]
    return any(x.size and float(np.abs(x).max()) > 1e4 for x in floats)
