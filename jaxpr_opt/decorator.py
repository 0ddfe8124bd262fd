"""`optimize`: `jax.jit` of the optimised program.

`jax.jit` itself jits the result, so calls take its fast path, and `lower`, `trace` and `eval_shape`
exist.  The jitted function traces the user's function once to a jaxpr, the pipeline rewrites it,
and one equation, ``optimized``, holds the result, with rules for every transformation (see
`jaxpr_opt.boundary.program`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    SupportsIndex,
    TypeVar,
    overload,
)
from weakref import WeakKeyDictionary

import jax

from jaxpr_opt import settings
from jaxpr_opt.bridge import compat_call, guard
from jaxpr_opt.bridge.compat_frames import boundary
from jaxpr_opt.errors import check_function, nearest
from jaxpr_opt.memory.budget import parse_budget
from jaxpr_opt.optimized import Optimized

if TYPE_CHECKING:
    from jaxpr_opt.engine.interface import Pass
    from jaxpr_opt.engine.pipeline import Pipeline

P = ParamSpec("P")
R = TypeVar("R")

_DONATED = ("donate_argnums", "donate_argnames")

Donate = Literal["matched", "auto"] | None
"""Which arguments `optimize` donates."""


class Origin(NamedTuple):
    """What an optimised function was made from."""

    fun: Callable[..., Any]
    pipeline: Pipeline
    jit_options: dict[str, Any]


_origins: WeakKeyDictionary[Any, Origin] = WeakKeyDictionary()
_kinds: set[type] = set()
"""The types of these functions."""


@overload
def optimize(
    fun: Callable[P, R],
    *,
    passes: Sequence[str | Pass[Any]] | None = None,
    skip: Sequence[str] = (),
    donate: Donate = None,
    memory: str | float | None = None,
    reassociate: bool = False,
    **jit_options: Any,
) -> Optimized[P, R]: ...
@overload
def optimize(
    fun: None = None,
    *,
    passes: Sequence[str | Pass[Any]] | None = None,
    skip: Sequence[str] = (),
    donate: Donate = None,
    memory: str | float | None = None,
    reassociate: bool = False,
    **jit_options: Any,
) -> Callable[[Callable[P, R]], Optimized[P, R]]: ...
@boundary
def optimize(
    fun: Callable[..., Any] | None = None,
    *,
    passes: Sequence[str | Pass[Any]] | None = None,
    skip: Sequence[str] = (),
    donate: Donate = None,
    memory: str | float | None = None,
    reassociate: bool = False,
    **jit_options: Any,
) -> Any:
    """Optimise the program of a function and jit it; works above and below `jax.grad`.

    Args:
      fun: any function `jax.jit` takes, or a jitted one, whose options are kept.
      passes: names of passes, or passes, to run instead of the default pipeline.
      skip: names of passes to leave out.
      donate: ``"matched"`` donates every array of the arguments whose memory a result can take;
        the caller must not use these arrays afterwards.  ``"auto"`` donates only those of them that
        the caller provably gives up (see `jaxpr_opt.donation.caller`).  By default nothing is
        donated; `explain` says what could be.
      memory: the temporary memory that the compiled program may take on each device: bytes, as
        ``"2 GiB"``, a fraction of what the fastest program takes, as ``0.25``, or ``"minimal"``.
        Values that a gradient stores are then recomputed, as far as the budget requires; by default
        only where that takes hardly any time, with ``1.0`` never.
      reassociate: whether sums may be computed in another order, so that results are rounded
        otherwise: what a loop adds up may then be mapped or multiplied once, after the loop.
      **jit_options: keyword arguments of `jax.jit`.  `donate_argnums` and `donate_argnames` limit
        which arguments `donate` may choose from; without `donate` they are donated as by `jax.jit`,
        but an unusable donation is an error.

    Returns:
      A jitted function; without `fun`, a decorator.

    Raises:
      TypeError: `fun` cannot be called, or is a coroutine or a generator; `reassociate` is not a
        bool; a position or name of `jax.jit` is none; or an argument is unknown.
      ValueError: an argument is invalid; the message names it, and what is expected.

    Example:
      >>> @jaxpr_opt.optimize
      ... def loss(x):
      ...     return jnp.sum(x**2)
      >>> jax.grad(loss)(jnp.ones(2)).tolist()
      [2.0, 2.0]
    """
    if fun is None:
        given = {"passes": passes, "skip": skip, "donate": donate, "memory": memory}
        return functools.partial(optimize, **given, reassociate=reassociate, **jit_options)
    check_function(fun, "optimize")
    if donate not in (None, "matched", "auto"):
        raise ValueError(f"optimize: donate={donate!r}: expected 'matched', 'auto' or None")
    _check_jit_options(jit_options)
    if memory is not None:
        parse_budget(memory, "optimize: memory")
    settings.check_reassociate(reassociate, "optimize")
    if settings.current().disable or not guard.is_open():
        return _plain(fun, donate, jit_options)
    from jaxpr_opt.engine import registry

    pipeline = registry.resolve(passes, skip, memory, reassociate=reassociate)
    inner = unwrap(fun)
    if inner is not None and inner.pipeline == pipeline and not jit_options and donate is None:
        return fun
    return guard.attempt(
        lambda: _optimizing(fun, pipeline, donate, jit_options),
        lambda: _plain(fun, donate, jit_options),
    )


def _plain(fun: Callable[..., Any], donate: Donate, jit_options: dict[str, Any]) -> Any:
    """The function as `jax.jit` compiles it."""
    dropped = () if donate is None else _DONATED  # there they are only what may be donated
    return jax.jit(fun, **{k: v for k, v in jit_options.items() if k not in dropped})


def _optimizing(
    fun: Callable[..., Any], pipeline: Pipeline, donate: Donate, jit_options: dict[str, Any]
) -> Any:
    """`fun`, bare or jitted, whose program the pipeline optimises."""
    from jaxpr_opt.bridge import compat_call

    compat_call.check_callable(fun)
    named = any(jit_options.get(each) is not None for each in _DONATED)
    inner, jit_options = _without_jit(fun, jit_options)
    made = _jitted(inner, pipeline, donate, jit_options, checked=named and donate is None)
    made.__wrapped__ = fun  # what `inspect` looks for
    return made


def _jitted(
    fun: Callable[..., Any],
    pipeline: Pipeline,
    donate: Donate,
    jit_options: dict[str, Any],
    *,
    checked: bool,
) -> Any:
    """`fun`, whose program the pipeline optimises, as a jitted function."""
    from jaxpr_opt.boundary import wrapping

    check = None
    if checked:
        from jaxpr_opt.donation import strict

        check = strict.check(fun, jit_options)
    fun, wrapped = wrapping.wrapped(fun, pipeline, check)
    made: Any
    if donate is None:
        made = wrapping.jitted(wrapped, jit_options)
    else:
        from jaxpr_opt.donation.calling import Donating

        variants = wrapped.once((donate, *sorted(jit_options.items())), dict)
        made = Donating(wrapped, donate, jit_options, variants)
    _kinds.add(type(made))
    _origins[made] = Origin(fun, pipeline, jit_options)  # which keeps the function as long
    return made


def unwrap(fun: Callable[..., Any]) -> Origin | None:
    """The function from which an optimised one was made; None if it is not one."""
    if type(fun) not in _kinds:  # `functools.wraps` copies attributes: they lie
        return None
    return _origins.get(fun)


def _without_jit(
    fun: Callable[..., Any], given: dict[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A jitted function's own function, and its options joined with the given ones."""
    from jaxpr_opt.boundary import wrapping

    jitted = compat_call.jit_options(fun)
    if jitted is None:
        return fun, given
    inner, own = jitted
    origin = unwrap(fun)
    if origin is not None and "inline" not in origin.jit_options:
        own.pop("inline", None)  # nobody asked for it
    for name in own.keys() & given.keys():
        if own[name] != given[name]:
            raise guard.users(
                ValueError(
                    f"optimize: {name}={given[name]!r} conflicts with {name}={own[name]!r}"
                    " of the jitted function"
                )
            )
    return inner.held() if isinstance(inner, wrapping.Wrapped) else inner, {**own, **given}


def _check_jit_options(options: dict[str, Any]) -> None:
    for name in options:
        if name not in _jit_options():
            known = ["passes", "skip", "donate", "memory", "reassociate", *_jit_options()]
            raise TypeError(f"optimize: unknown argument {name!r}{nearest(name, known)}")
    for name, (kind, expected) in _CHOSEN.items():
        given = options.get(name)
        is_listed = isinstance(given, Collection) and not isinstance(given, str)
        each: Any = given if is_listed else () if given is None else (given,)
        if not all(isinstance(n, kind) for n in each):
            raise TypeError(f"optimize: {name}={given!r}: expected {expected}")


_POSITIONS = (SupportsIndex, "a position or several, as 0 or (0, 2)")
_NAMES = (str, "a name or several, as 'x' or ('x', 'y')")
_CHOSEN: dict[str, tuple[Any, str]] = {
    "static_argnums": _POSITIONS,
    "donate_argnums": _POSITIONS,
    "static_argnames": _NAMES,
    "donate_argnames": _NAMES,
}
"""Options of `jax.jit` that choose arguments: the type of one, and what is expected."""


@functools.cache
def _jit_options() -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(jax.jit).parameters if name != "fun")
