"""Where a program may be changed, and what may be read there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpr_opt.ir.graph import UNDEFINED, Call, Graph, Op, Region, Value
from jaxpr_opt.ir.rewriter import Rewriter

INTS = (0, 1, -1, 2, 3, 4, 5, 7, 100, 127, 128, 255, -128)
FLOATS = (0.0, 1.0, -1.0, -0.0, 0.5, float("nan"), float("inf"), float("-inf"), 1e30)


def copy_of(graph: Graph) -> tuple[Graph, Rewriter]:
    """The same program, to be changed."""
    made = Graph(Region(), graph.name, graph.debug_info, graph.phase)
    rw = Rewriter(made)
    made.body = rw.copy_region(graph.body, {})
    made.body.owner = made
    count = len(graph.cotangents)
    made.cotangents = made.inputs[len(made.inputs) - count :] if count else ()
    made.opened = graph.opened
    return made, Rewriter(made)


def is_plain(value: Value) -> bool:
    """Whether a value is an array of numbers."""
    return isinstance(value.dtype, np.dtype) and value.dtype != jax.dtypes.float0


def may_change(op: Op) -> bool:
    """Whether an op may be changed: what JAX made by transposing stays linear."""
    return not op.source.transposed and op.name != UNDEFINED and not _is_isolated(op)


def _is_isolated(op: Op) -> bool:
    around = op.parent
    while around is not None and not isinstance(around, Call):
        around = around.parent
    return around is not None


def ops(graph: Graph, rng: random.Random) -> list[Op]:
    """Ops that may be changed, in random order."""
    found = [op for op in graph.walk() if may_change(op)]
    rng.shuffle(found)
    return found


def visible(op: Op) -> Iterator[Value]:
    """Values that an op may read."""
    around: Op | None = op
    while around is not None and around.region is not None:
        yield from around.region.params
        for each in around.region.ops:
            if each is around:
                break
            yield from each.results
        around = around.parent


def alike(value: Value, op: Op) -> list[Value]:
    """Other values of the same type that an op may read."""
    return [v for v in visible(op) if v is not value and v.aval == value.aval]


def constant(value: Value, rw: Rewriter, rng: random.Random, before: Op) -> Value:
    """A number of the type of a value."""
    aval, dtype = value.aval, value.dtype
    number = _number(dtype, rng)
    return rw.insert(lambda: jnp.full(aval.shape, number, dtype), before=before)


def _number(dtype: Any, rng: random.Random) -> Any:
    if dtype == np.bool_:
        return np.asarray(rng.random() < 0.5)
    if jnp.issubdtype(dtype, jnp.integer):
        return np.asarray(rng.choice(INTS)).astype(dtype)
    return np.asarray(rng.choice(FLOATS)).astype(dtype)


def zeros(like: Value) -> Callable[[], Any]:
    """What makes an array of zeros of the type of a value."""
    return lambda: jnp.zeros(like.shape, like.dtype)
