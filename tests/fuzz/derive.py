"""New seeds by JAX's transformations, and in other dtypes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from fuzz import corpus
from fuzz.mutations.places import copy_of
from jaxpr_opt.bridge import compat
from jaxpr_opt.ir import exporter
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Constant, Graph
from jaxpr_opt.ir.importer import import_jaxpr

FLOATS = ("float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
          "float8_e5m2fnuz", "float8_e4m3b11fnuz", "complex64")  # fmt: skip
INTS = ("int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64", "int4", "uint4")


def derived(seed: corpus.Seed, rng: random.Random) -> corpus.Seed | None:
    """What JAX, or another dtype, makes of a program; None if it makes nothing of it."""
    how = rng.choice(
        ["grad", "grad", "jvp", "vmap", "vmap", "scan", "remat", "type", "type", "int"]
    )
    if how in {"type", "int"}:
        old, new = ("float32", rng.choice(FLOATS)) if how == "type" else ("int32", rng.choice(INTS))
        return _retyped(seed, old, new)
    with jax.enable_x64(False):
        try:
            jaxpr = export(seed.graph)
            fun = TRANSFORMATIONS[how](jaxpr_as_fun(jaxpr), jaxpr.in_avals, rng)
            made = jax.make_jaxpr(fun[0])(*fun[1])
        except (TypeError, ValueError, NotImplementedError, IndexError, RuntimeError):
            return None
    aimed_at = seed.aimed_at if how in {"vmap", "scan"} else None
    return corpus.Seed(import_jaxpr(made), f"{how} of {seed.origin}", aimed_at)


Made = tuple[Callable[..., Any], Sequence[Any]]


def _specs(avals: Sequence[Any]) -> list[Any]:
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]


def _floats(values: Sequence[Any]) -> list[int]:
    return [k for k, v in enumerate(values) if jnp.issubdtype(v.dtype, jnp.floating)]


def _loss(fun: Callable[..., Any], given: list[int], args: Sequence[Any]) -> Callable[..., Any]:
    def loss(*floats: Any) -> Any:
        full = list(args)
        for k, x in zip(given, floats, strict=True):
            full[k] = x
        outs = fun(*full)
        return sum(jnp.sum(jnp.sin(outs[k].astype(jnp.float32))) for k in _floats(outs))

    return loss


def _grad(fun: Callable[..., Any], avals: Sequence[Any], _: random.Random) -> Made:
    given = _floats(avals)

    def grad(*args: Any) -> Any:
        numbers = tuple(range(len(given)))
        return jax.grad(_loss(fun, given, args), numbers)(*(args[k] for k in given))

    return grad, _specs(avals)


def _jvp(fun: Callable[..., Any], avals: Sequence[Any], _: random.Random) -> Made:
    given = _floats(avals)

    def jvp(*args: Any) -> Any:
        floats = [args[k] for k in given]
        return jax.jvp(_loss(fun, given, args), floats, [jnp.cos(x) for x in floats])

    return jvp, _specs(avals)


def _vmap(fun: Callable[..., Any], avals: Sequence[Any], rng: random.Random) -> Made:
    axes = [rng.choice((0, 0, None)) for _ in avals]
    axes = axes if 0 in axes else [0] * len(axes)
    specs = [
        jax.ShapeDtypeStruct(a.shape if d is None else (2, *a.shape), a.dtype)
        for a, d in zip(avals, axes, strict=True)
    ]
    return jax.vmap(fun, axes), specs


def _kind(x: Any) -> Any:
    """The shape and dtype of an array, or of a number that JAX returns as one of Python."""
    aval: Any = jax.typeof(x)
    return aval.shape, aval.dtype


def _scan(fun: Callable[..., Any], avals: Sequence[Any], rng: random.Random) -> Made:
    """In a loop that carries what the program returns of the type of an argument."""
    back = rng.random() < 0.3

    def loop(*args: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            outs = fun(*carry)
            new, left = list(carry), list(outs)
            for k, old in enumerate(carry):
                like = [o for o in left if _kind(o) == _kind(old)]
                if like:
                    new[k] = like[0]
                    left = [o for o in left if o is not like[0]]
            return new, left

        return lax.scan(step, list(args), None, length=3, reverse=back)

    return loop, _specs(avals)


def _remat(fun: Callable[..., Any], avals: Sequence[Any], rng: random.Random) -> Made:
    return _grad(jax.checkpoint(fun), avals, rng)


TRANSFORMATIONS: dict[str, Callable[..., Made]] = {
    "grad": _grad, "jvp": _jvp, "vmap": _vmap, "scan": _scan, "remat": _remat,
}  # fmt: skip


def _retyped(seed: corpus.Seed, old: str, new: str) -> corpus.Seed | None:
    """The same program with one dtype in place of another."""
    with jax.enable_x64("64" in new and new != "complex64"):
        try:
            made = _in_type(seed.graph, jnp.dtype(old), jnp.dtype(new))
        except Exception:  # noqa: BLE001 - primitives refuse dtypes in many ways
            return None
        return corpus.Seed(import_jaxpr(made), f"{new} of {seed.origin}", seed.aimed_at)


def _in_type(graph: Graph, old: Any, new: Any) -> ClosedJaxpr:
    made, _ = copy_of(graph)

    def retyped(aval: Any) -> Any:
        return aval.update(dtype=new) if getattr(aval, "dtype", None) == old else aval

    def swapped(value: Any) -> Any:
        return new if isinstance(value, np.dtype) and value == old else value

    for op in made.walk():
        op.params = {k: swapped(v) for k, v in op.params.items()}
        for value in op.operands:
            if isinstance(value, Constant) and value.dtype == old:
                with np.errstate(all="ignore"):
                    value.value = np.asarray(value.value).astype(new)
                value.aval = retyped(value.aval)
    avals = [retyped(v.aval) for v in made.inputs]
    jaxpr = compat.trace(lambda *args: exporter.evaluate(made.body, args, {}), avals)
    compat.check_jaxpr(jaxpr)
    return jaxpr
