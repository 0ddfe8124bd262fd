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
from jax.extend.core import primitives

from fuzz import check, transformed
from fuzz.eager import eager
from fuzz.lanes import AXIS, LANES, bound
from fuzz.mutations import effects
from jaxpr_opt import compat, registry
from jaxpr_opt.importer import import_jaxpr
from jaxpr_opt.ir import Phase

PRIMITIVES = {
    each.name: each
    for module in (primitives, lax)
    for name, each in vars(module).items()
    if name.endswith("_p")
}


def bind(primitive: str, *operands: Any, **params: Any) -> list[Any]:
    """The results of one equation."""
    return compat.bind(PRIMITIVES[primitive], [jnp.asarray(x) for x in operands], params)


def dtype(name: str) -> Any:
    """The dtype of that name."""
    return jnp.dtype(name)


def number(value: Any, kind: str) -> Any:
    """An array of that dtype."""
    return np.asarray(value).astype(jnp.dtype(kind))


def weak(value: Any) -> Any:
    """A number as Python writes it."""
    return value


def undefined(shape: tuple[int, ...], kind: str) -> Any:
    """An array of which nothing is known."""
    return compat.undefined(compat.array_aval(shape, jnp.dtype(kind)))


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
) -> None:
    """Check that a program computes the same after passes: ``whole``, or the name of one."""
    avals = _specs(types)
    with jax.enable_x64(any("64" in each for each in types)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a number that overflows is no concern of ours
        axes = [(AXIS, LANES)] if lanes else None
        graph = import_jaxpr(jax.make_jaxpr(program, axis_env=axes)(*avals), phase)
        with eager(), bound() if lanes else contextlib.nullcontext():
            _check(graph, _plan(passes, phase, tidied, lanes))


def check_transformed(
    program: Callable[..., Any], types: Sequence[str], how: str, inside: bool, seed: int
) -> None:
    """Check that derivatives and batches of an optimised program are those of the program."""
    on_devices = "devices" in how
    axes = [(AXIS, LANES)] if on_devices else None
    with jax.enable_x64(any("64" in each for each in types)), eager():
        graph = import_jaxpr(jax.make_jaxpr(program, axis_env=axes)(*_specs(types)))
        with bound() if on_devices else contextlib.nullcontext():
            way = transformed.Way(how, inside, seed)
            found = transformed.check_way(graph, way, np.random.default_rng(0)).difference
    assert found is None, found.text


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


def _check(graph: Any, plan: check.Plan) -> None:
    after, _ = check.run(graph, plan)
    for seed in range(4):
        draw = check.for_lanes if plan.lanes else check.arguments
        for args in draw(graph, np.random.default_rng(seed)):
            if plan.lanes:
                found = check.compare(graph, after, [args], plan=plan)
            else:
                found = check.confirmed(graph, after, args)
            assert found is None, found.text
