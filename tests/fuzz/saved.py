"""What saved programs are written in, and their check."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives

from fuzz import check
from fuzz.eager import eager
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
) -> None:
    """Check that a program computes the same after passes: ``whole``, or the name of one."""
    avals = [
        jax.ShapeDtypeStruct(
            tuple(map(int, filter(None, shape.rstrip("]").split(",")))), dtype(kind)
        )
        for kind, _, shape in (each.partition("[") for each in types)
    ]
    with jax.enable_x64(any("64" in each for each in types)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a number that overflows is no concern of ours
        graph = import_jaxpr(jax.make_jaxpr(program)(*avals), phase)
        with eager():
            _check(graph, passes, phase, tidied)


def _check(graph: Any, passes: str, phase: Phase, tidied: bool) -> None:
    if passes == "whole":
        plan = check.whole(phase)
    else:
        plan = check.alone(registry.named(passes), phase, tidied=tidied)
    after, _ = check.run(graph, plan)
    for seed in range(4):
        for args in check.arguments(graph, np.random.default_rng(seed)):
            found = check.confirmed(graph, after, args)
            assert found is None, found.text
