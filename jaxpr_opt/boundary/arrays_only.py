"""Turn functions whose arguments also hold functions, names and settings into functions of arrays
alone.

Such functions can be traced whatever a framework puts into its modules. They serve analysis only:
results that are not arrays are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxpr_opt.bridge import compat_call
from jaxpr_opt.errors import NoArraysError, indefinite
from jaxpr_opt.frames import name_of

STATIC = ("static_argnums", "static_argnames")


@jax.tree_util.register_static
@dataclass(frozen=True, eq=False, slots=True)
class _Kept:
    """Something in a pytree of arguments that JAX cannot trace."""

    value: Any


def arrays_only(
    fun: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[Callable[..., Any], Any, Any]:
    """A function and its arguments, which hold nothing but arrays.

    One that `jax.jit` or `optimize` made stays where that will do: it knows what is static.
    """
    jitted = compat_call.jit_options(fun)
    has_own = jitted is not None and any(jitted[1].get(name) for name in STATIC)
    if has_own or (jitted is not None and not holds_statics((args, kwargs))):
        return fun, args, kwargs
    return of_arrays(fun), *kept((args, kwargs))


def kept(arguments: Any) -> Any:
    """A pytree whose leaves that JAX cannot trace are part of its structure."""
    return jax.tree.map(lambda x: _Kept(x) if _is_opaque(x) else x, arguments)


def holds_statics(arguments: Any) -> bool:
    """Whether a pytree has leaves that JAX cannot trace."""
    return any(map(_is_opaque, jax.tree.leaves(arguments)))


def _is_opaque(leaf: Any) -> bool:
    is_array = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    return not is_array and not isinstance(leaf, bool | int | float | complex)


def of_arrays(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `kept` arguments; what it returns beside arrays is left out, and an error if
    there are none.
    """

    @functools.wraps(fun)
    def traceable(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = jax.tree.map(
            lambda x: x.value if isinstance(x, _Kept) else x,
            (args, kwargs),
            is_leaf=lambda x: isinstance(x, _Kept),
        )
        made = fun(*args, **kwargs)
        leaves = jax.tree.leaves(made)
        if leaves and all(map(_is_opaque, leaves)):
            kind = indefinite(type(leaves[0]).__name__)
            raise NoArraysError(
                f"{name_of(fun)} returned {kind}: JAX traces functions that return arrays"
            )
        return jax.tree.map(lambda x: None if _is_opaque(x) else x, made)

    return traceable
