"""What saved programs are written in, and their check."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive, primitives

from fuzz import check, transformed
from fuzz.eager import eager
from fuzz.lanes import AXIS, LANES, bound
from fuzz.mutations import effects
from jaxpr_opt.bridge import compat, compat_types
from jaxpr_opt.engine import registry
from jaxpr_opt.engine.interface import PassError
from jaxpr_opt.ir.graph import Graph, Phase
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.verify import VerifyError

PRIMITIVES = {
    each.name: each
    for module in (primitives, lax)
    for name, each in vars(module).items()
    if name.endswith("_p")
}


_KEPT = Primitive("kept")
_KEPT.def_abstract_eval(lambda aval: aval)


class DifferenceError(AssertionError):
    """A program does not compute the same after passes."""

    def __init__(self, found: check.Difference) -> None:
        super().__init__(found.text)
        self.found = found


def bind(primitive: str, *operands: Any, **params: Any) -> list[Any]:
    """The results of one equation."""
    return compat.bind(PRIMITIVES[primitive], [jnp.asarray(x) for x in operands], params)


def dtype(name: str) -> Any:
    """The dtype of that name."""
    return jnp.dtype(name)


def kept(value: Any) -> Any:
    """A value that a loop or a branch returns as it is: JAX takes it out of them otherwise."""
    return _KEPT.bind(value)


def number(value: Any, kind: str) -> Any:
    """An array of that dtype."""
    return np.asarray(value).astype(jnp.dtype(kind))


def weak(value: Any) -> Any:
    """A number as Python writes it."""
    return value


def undefined(shape: tuple[int, ...], kind: str) -> Any:
    """An array of which nothing is known."""
    return compat_types.undefined(compat_types.array_aval(shape, jnp.dtype(kind)))


def say(x: Any) -> None:
    """Print a number."""
    jax.debug.callback(effects.heard, x, ordered=True)


def murmur(x: Any) -> None:
    """Print a number, in any order."""
    jax.debug.callback(effects.overheard, x, ordered=False)


def check_saved(
    program: Callable[..., Any],
    types: Sequence[str],
    passes: str,
    phase: Phase,
    *,
    tidied: bool = False,
    lanes: bool = False,
    compiled: bool = False,
) -> None:
    """Check that a program computes the same after passes: ``whole``, or the name of one."""
    with jax.enable_x64(any("64" in each for each in types)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a number that overflows is no concern of ours
        graph = graph_of(program, _specs(types), phase, lanes=lanes)
        with eager(), bound() if lanes else contextlib.nullcontext():
            found = _difference(graph, _plan(passes, phase, tidied, lanes), compiled)
    if found is not None:
        raise DifferenceError(found)


def check_transformed(
    program: Callable[..., Any], types: Sequence[str], how: str, inside: bool, seed: int
) -> None:
    """Check that derivatives and batches of an optimised program are those of the program."""
    on_devices = "devices" in how
    with jax.enable_x64(any("64" in each for each in types)), eager():
        graph = graph_of(program, _specs(types), lanes=on_devices)
        with bound() if on_devices else contextlib.nullcontext():
            way = transformed.Way(how, inside, seed)
            found = transformed.check_way(graph, way, np.random.default_rng(0)).difference
    if found is not None:
        raise DifferenceError(found)


def graph_of(
    program: Callable[..., Any],
    avals: Sequence[Any],
    phase: Phase = "differentiable",
    *,
    lanes: bool = False,
) -> Graph:
    """The graph that a program was written from."""
    axes = [(AXIS, LANES)] if lanes else None
    graph = import_jaxpr(jax.make_jaxpr(program, axis_env=axes)(*avals), phase)
    rw = Rewriter(graph)
    for op in [each for each in graph.walk() if each.name == _KEPT.name]:
        rw.replace(op.result, op.operands[0])
        rw.erase(op)
    return graph


def kind_of_failure(text: str) -> check.Kind | None:
    """What the test in a saved file finds; None if it passes, or if the file has no such test."""
    names: dict[str, Any] = {}
    try:
        exec(text, names)
        names["test_it"]()
    except DifferenceError as error:
        return error.found.kind
    except Exception:  # noqa: BLE001 - what is saved is no program
        return None
    return None


def _specs(types: Sequence[str]) -> list[jax.ShapeDtypeStruct]:
    shapes = [(kind, shape.rstrip("]").split(",")) for kind, _, shape in
              (each.partition("[") for each in types)]  # fmt: skip
    return [
        jax.ShapeDtypeStruct(tuple(map(int, filter(None, shape))), dtype(kind))
        for kind, shape in shapes
    ]


def _plan(passes: str, phase: Phase, tidied: bool, lanes: bool) -> check.Plan:
    whole = passes == "whole"
    plan = (
        check.whole(phase) if whole else check.alone(registry.named(passes), phase, tidied=tidied)
    )
    return dataclasses.replace(plan, lanes=lanes)


def _difference(graph: Graph, plan: check.Plan, compiled: bool) -> check.Difference | None:
    draw = check.for_lanes if plan.lanes else check.arguments
    drawn = [args for seed in range(4) for args in draw(graph, np.random.default_rng(seed))]
    try:
        if compiled:
            return check.compiled(graph, plan, drawn)
        after, journal = check.run(graph, plan)
    except (PassError, VerifyError) as error:
        return check.Difference("fault", f"{plan.label}: {error}")
    fired = check.those_fired(journal)
    found = (_compared(graph, after, args, plan, fired) for args in drawn)
    return next(filter(None, found), None)


def _compared(
    graph: Graph, after: Graph, args: Sequence[Any], plan: check.Plan, fired: tuple[str, ...]
) -> check.Difference | None:
    if plan.lanes:
        return check.compare(graph, after, [args], check.Outcome(fired), plan)
    return check.confirmed(graph, after, args, rounds=plan.rounds(fired))
