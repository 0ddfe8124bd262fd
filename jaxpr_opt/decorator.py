"""`optimize`: `jax.jit` for programs that JAX makes slower or bigger than what their author wrote.

The result is a function jitted by `jax.jit` itself, so calls take its fast path and `lower`,
`trace` and `eval_shape` are there.  What is jitted traces the user's function once to a jaxpr, lets
the pipeline rewrite it, and leaves one equation, ``optimized``, with rules for every transformation
(see `jaxpr_opt.boundary.program`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload
from weakref import WeakKeyDictionary

import jax
from jax.core import Tracer

from jaxpr_opt import door, settings
from jaxpr_opt.stack import with_room

if TYPE_CHECKING:
    from jaxpr_opt.donation.strict import Check
    from jaxpr_opt.pipeline import Pass, Pipeline

_JITTED = type(jax.jit(lambda: None))
_DONATED = ("donate_argnums", "donate_argnames")

Donate = Literal["matched", "auto"] | None
"""Which arguments `optimize` donates."""


class Origin(NamedTuple):
    """What an optimised function was made from."""

    fun: Callable[..., Any]
    pipeline: Pipeline
    jit_options: dict[str, Any]


_origins: WeakKeyDictionary[Any, Origin] = WeakKeyDictionary()


@overload
def optimize(
    fun: Callable[..., Any],
    *,
    passes: Sequence[str | Pass] | None = None,
    skip: Sequence[str] = (),
    donate: Donate = None,
    **jit_options: Any,
) -> Any: ...
@overload
def optimize(
    fun: None = None,
    *,
    passes: Sequence[str | Pass] | None = None,
    skip: Sequence[str] = (),
    donate: Donate = None,
    **jit_options: Any,
) -> Callable[[Callable[..., Any]], Any]: ...
def optimize(
    fun: Callable[..., Any] | None = None,
    *,
    passes: Sequence[str | Pass] | None = None,
    skip: Sequence[str] = (),
    donate: Donate = None,
    **jit_options: Any,
) -> Any:
    """Jit a function after optimising its program; above or below `jax.grad`, bare or called.

    Args:
      fun: any function `jax.jit` takes, or a jitted one, whose options are taken over.
      passes: names of passes, or passes, to run instead of the default pipeline.
      skip: names of passes to leave out.
      donate: ``"matched"`` donates every array of the arguments that can become a result, and
        nothing else: the caller must not use them afterwards.  ``"auto"`` donates of those only
        what the caller provably gives up (see `jaxpr_opt.donation.caller`).  By default nothing is
        donated; `explain` says what could be.
      **jit_options: `jax.jit`'s own keyword arguments.  `donate_argnums` and `donate_argnames` say
        which arguments `donate` may choose from; without `donate` they are donated as by `jax.jit`,
        but it is an error if one cannot be used.

    Returns:
      A jitted function; without `fun`, a decorator.
    """
    if fun is None:
        return functools.partial(optimize, passes=passes, skip=skip, donate=donate, **jit_options)
    if not callable(fun):
        raise TypeError(f"optimize: fun must be callable, got {fun!r}")
    if donate not in (None, "matched", "auto"):
        raise ValueError(f"optimize: donate={donate!r}: expected 'matched', 'auto' or None")
    _check_jit_options(jit_options)
    if settings.current().disable or not door.is_open():
        dropped = () if donate is None else _DONATED  # there they are only what may be donated
        return jax.jit(fun, **{k: v for k, v in jit_options.items() if k not in dropped})
    from jaxpr_opt import registry

    pipeline = registry.resolve(passes, skip)
    inner = unwrap(fun)
    if inner is not None and inner.pipeline == pipeline and not jit_options and donate is None:
        return fun
    named = any(jit_options.get(each) is not None for each in _DONATED)
    fun, jit_options = _without_jit(fun, jit_options)
    check = _donation_check(fun, jit_options) if named and donate is None else None
    wrapped = _wrap(fun, pipeline, check)
    _origins[wrapped] = Origin(fun, pipeline, jit_options)
    if donate is None:
        return jax.jit(wrapped, **jit_options)
    from jaxpr_opt.donation.calling import Donating

    return Donating(wrapped, donate, jit_options)


def _donation_check(fun: Callable[..., Any], jit_options: dict[str, Any]) -> Check:
    from jaxpr_opt.donation import strict

    return strict.check(fun, jit_options)


def unwrap(fun: Callable[..., Any]) -> Origin | None:
    """What an optimised function was made from; None if it is not one."""
    from jaxpr_opt.donation.calling import Donating

    if not isinstance(fun, _JITTED | Donating):  # `functools.wraps` copies attributes: they lie
        return None
    return _origins.get(getattr(fun, "__wrapped__", None))


def _wrap(
    fun: Callable[..., Any], pipeline: Pipeline, check: Check | None = None
) -> Callable[..., Any]:
    """`fun` with its program behind one equation; to be called under a trace of `jax.jit`."""
    from jaxpr_opt.boundary import rules

    config: Any = jax.config

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if config.jax_disable_jit or settings.current().disable or not door.is_open():
            return fun(*args, **kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs))
        dynamic = [isinstance(leaf, Tracer) for leaf in leaves]  # the others are static arguments
        out_trees: list[Any] = []

        def body(*args: Any, **kwargs: Any) -> list[Any]:
            given = iter(jax.tree.leaves((args, kwargs)))
            full = [
                next(given) if is_dynamic else x
                for x, is_dynamic in zip(leaves, dynamic, strict=True)
            ]
            args, kwargs = jax.tree.unflatten(tree, full)
            out, out_tree = jax.tree.flatten(fun(*args, **kwargs))
            out_trees.append(out_tree)
            return out

        operands = [
            x if is_dynamic else None for x, is_dynamic in zip(leaves, dynamic, strict=True)
        ]
        args, kwargs = jax.tree.unflatten(tree, operands)
        jaxpr = jax.make_jaxpr(_named(body, fun))(*args, **kwargs)
        if check is not None:
            check(args, kwargs, jaxpr)
        out = rules.call(jaxpr, pipeline, _name(fun), [x for x in operands if x is not None])
        return jax.tree.unflatten(out_trees[-1], out)

    return _named(with_room(wrapped), fun)


def _named(wrapper: Callable[..., Any], fun: Callable[..., Any]) -> Callable[..., Any]:
    """Give a wrapper the name, signature and source of `fun`: JAX reads them for its messages."""
    functools.update_wrapper(wrapper, fun, updated=())
    wrapper.__name__ = _name(fun)
    return wrapper


def _name(fun: Any) -> str:
    while isinstance(fun, functools.partial):
        fun = fun.func
    return str(getattr(fun, "__name__", type(fun).__name__))


def _without_jit(
    fun: Callable[..., Any], given: dict[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A jitted function's own function, and its options joined with the given ones."""
    from jaxpr_opt import compat_ad

    jitted = compat_ad.jit_options(fun)
    if jitted is None:
        return fun, given
    inner, own = jitted
    for name in own.keys() & given.keys():
        if own[name] != given[name]:
            raise ValueError(
                f"optimize: {name}={given[name]!r} conflicts with {name}={own[name]!r}"
                " of the jitted function"
            )
    return inner, {**own, **given}


def _check_jit_options(options: dict[str, Any]) -> None:
    known = [name for name in inspect.signature(jax.jit).parameters if name != "fun"]
    for name in options:
        if name not in known:
            raise TypeError(
                f"optimize: unknown argument {name!r}:"
                f" expected passes, skip or one of jax.jit's {', '.join(known)}"
            )
