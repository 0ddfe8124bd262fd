"""The function that is traced for a target: itself, or its gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpr_opt.boundary.arrays_only import STATIC, arrays_only
from jaxpr_opt.bridge import compat_call
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.lint.options import Mode
from jaxpr_opt.targets import Arguments


def traceable(
    fun: Callable[..., Any], arguments: Arguments, mode: Mode, argnums: int | tuple[int, ...]
) -> tuple[Callable[..., Any], Arguments]:
    """The function to trace, and its arguments.

    Of a function that is not jitted, arguments JAX cannot trace are taken as they are, and such
    results are left out.

    Raises:
      ValueError: `argnums` are not positions of arguments.
    """
    jitted = compat_call.jit_options(fun)
    fun, args, kwargs = arrays_only(fun, *arguments)
    arguments = args, kwargs
    if mode != "gradient":  # whether a function is a loss is known once it was traced
        return fun, arguments
    positions = (argnums,) if isinstance(argnums, int) else argnums
    count = len(arguments[0])
    if not all(-count <= position < count for position in positions):
        raise ValueError(
            f"argnums {', '.join(map(str, positions))}: there are {count} positional arguments"
        )
    static = {} if jitted is None else {k: jitted[1][k] for k in STATIC if k in jitted[1]}
    return jax.jit(_gradient(fun, positions), **static), arguments


def loss_argument(fun: Callable[..., Any], arguments: Arguments, graph: Graph) -> int | None:
    """The position of the argument that a loss is differentiated by; None if `fun` is no loss.

    A loss returns a float, or a pair that begins with one, and computes no gradient itself.  It is
    differentiated by the first argument that holds floats.
    """
    args, kwargs = arguments
    if not any(map(_is_scalar, graph.outputs[:1])) or graph.has_gradient:
        return None
    jitted: Any = fun if isinstance(fun, jax.stages.Wrapped) else None
    made = jitted.eval_shape(*args, **kwargs) if jitted else _shapes_of(fun, *args, **kwargs)
    value = made[0] if isinstance(made, tuple) and len(made) == 2 else made
    if not isinstance(value, jax.ShapeDtypeStruct) or not _is_scalar(value):
        return None
    return next((i for i, x in enumerate(args) if any(map(_is_float, jax.tree.leaves(x)))), None)


def _shapes_of(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return jax.eval_shape(lambda args, kwargs: fun(*args, **kwargs), args, kwargs)


def _is_float(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(jnp.result_type(leaf), jnp.inexact))


def _gradient(fun: Callable[..., Any], positions: tuple[int, ...]) -> Callable[..., Any]:
    """The value of `fun` and its gradient, for any function.

    A scalar, or the first of a tuple if that is one (as with ``has_aux=True``), is differentiated;
    of other outputs the sum.
    """

    @functools.wraps(fun)
    def value_and_gradient(*args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        def primal(*chosen: Any) -> tuple[Any, Any]:
            given = list(args)
            for position, value in zip(positions, chosen, strict=True):
                given[position] = value
            made = fun(*given, **kwargs)
            if isinstance(made, tuple) and len(made) > 1 and _is_scalar(made[0]):
                return made[0], made[1:]
            return made, ()

        value, pull, aux = jax.vjp(primal, *(args[i] for i in positions), has_aux=True)
        cotangents = jax.tree.map(_one, value)
        gradient = [g for g in jax.tree.leaves(pull(cotangents)) if g.dtype != jax.dtypes.float0]
        return (value, aux), gradient

    return value_and_gradient


def _is_scalar(value: Any) -> bool:
    return _is_float(value) and jnp.shape(value) == ()


def _one(output: Any) -> Any:
    """The cotangent of an output in the sum of all."""
    if jax.dtypes.issubdtype(output.dtype, jnp.inexact):
        return jnp.ones_like(output)
    return np.zeros(output.shape, jax.dtypes.float0)
