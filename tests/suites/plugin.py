"""A plugin of pytest, ``-p suites.plugin``: `jax.jit` and `jax.grad` go through `optimize`.

It must be loaded before the library under test, which may take `jax.jit` by name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax

from jaxpr_opt import optimize

JIT, GRAD, VALUE_AND_GRAD = jax.jit, jax.grad, jax.value_and_grad
UNTRACED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.UnexpectedTracerError,
)
"""What a function says that looks at its values: `jax.grad` lets it, `jax.jit` does not."""


@functools.wraps(JIT)  # its signature says which options there are
def jit(fun: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """`jax.jit` of the optimised function; for `jaxpr_opt` itself what it was."""
    caller = sys._getframe(1).f_globals.get("__name__", "")
    if fun is None:
        return functools.partial(jit, **options)
    if caller.partition(".")[0] == "jaxpr_opt":
        return JIT(fun, **options)
    return optimize(fun, **options)


def _of_optimized(transform: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(transform)
    def transformed(fun: Callable[..., Any], *args: Any, **options: Any) -> Any:
        plain = transform(fun, *args, **options)
        ours = transform(optimize(fun), *args, **options)

        @functools.wraps(plain)
        def derivative(*args: Any, **kwargs: Any) -> Any:
            if not all(map(_is_array, jax.tree.leaves((args, kwargs)))):
                return plain(*args, **kwargs)
            try:
                return ours(*args, **kwargs)
            except UNTRACED:
                return plain(*args, **kwargs)

        return derivative

    return transformed


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | float | int | complex) or hasattr(leaf, "__array__")


jax.jit = jit
jax.grad = _of_optimized(GRAD)
jax.value_and_grad = _of_optimized(VALUE_AND_GRAD)
