"""JAX's private parts that jitted functions and their calls meet: options, what an array is, what
arguments are called, and what runs where the compiled program is not found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax._src import api_util as _api_util
from jax._src import core as _core
from jax._src import tree_util as _tree
from jax._src import xla_bridge as _bridge
from jax._src.sharding_impls import UnspecifiedValue as _Unspecified

from jaxpr_opt.bridge import compat
from jaxpr_opt.bridge.compat_frames import boundary, without_ours

_STAGES = ("trace", "lower", "eval_shape")
"""The methods of a jitted function that trace it, besides its call."""

_BY_TYPE: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def is_array(leaf: Any) -> bool:
    """Whether `jax.jit` takes a leaf of its arguments as an array."""
    if isinstance(leaf, np.ndarray | np.generic):  # those of strings and objects are none
        return _has_type(leaf)
    kind = type(leaf)
    if kind not in _BY_TYPE:
        _BY_TYPE[kind] = _has_type(leaf)
    return _BY_TYPE[kind]


def _has_type(leaf: Any) -> bool:
    if hasattr(leaf, "dtype") and not hasattr(leaf, "shape"):  # as layers of `flax.linen`
        return False
    try:
        _core.shaped_abstractify(leaf)
    except TypeError:
        return False
    except (OverflowError, ValueError):  # an array that `jax.jit` refuses in its own words
        return True
    return True


def living() -> list[Any]:
    """Every array that there is, on all platforms."""
    backends = _bridge.backends().values()
    return [array for backend in backends for array in backend.live_arrays()]


def check_callable(fun: Any) -> None:
    """Raise what `jax.jit` raises for what it cannot call."""
    _api_util.check_callable(fun)


def leaf_names(
    fun: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    static: tuple[Sequence[int], Sequence[str]] = ((), ()),
) -> tuple[str, ...]:
    """The names that JAX gives to the leaves of a function's arguments which are not static:
    ``params['w']``.
    """
    info = _api_util.debug_info(
        "jit", fun, args, kwargs, static_argnums=static[0], static_argnames=static[1]
    )
    return tuple(info.arg_names or ())


def describe(wrapper: Any, fun: Any, names: Sequence[str]) -> Any:
    """Have JAX's messages about `wrapper`, a function of a flat list of arrays of these names, say
    that it is `fun`.  Returns what they say.
    """
    info = _api_util.debug_info("jit", fun, (), {})._replace(arg_names=tuple(names))
    wrapper.__fun_debug_info__ = info
    wrapper.__name__ = wrapper.__qualname__ = getattr(fun, "__name__", type(fun).__name__)
    return info


class Fallback(Protocol):
    """What is asked before JAX traces a function."""

    def __call__(self, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """What to do in a call with these arguments, instead of JAX; None where that may go on."""

    def stage(self, how: str, args: Any, kwargs: Any) -> Any:
        """What the method `how` gives for these arguments; None where JAX says."""


def with_fallback(jitted: Any, fallback: Fallback, fun: Any) -> Any:
    """A jitted function, as `jax.jit` makes it, that asks `fallback` first where it finds no
    compiled program. It and its stages keep `fun`, for copies of it, and for a function of which
    only a stage is left.
    """

    def ask(args: Any, kwargs: Any) -> Any:
        instead = fallback(args, kwargs)
        return None if instead is None else lambda *_, **__: (instead(), None, False)

    def stage(how: str, plain: Any, args: Any, kwargs: Any) -> Any:
        instead = fallback.stage(how, args, kwargs)
        return plain(*args, **kwargs) if instead is None else instead

    return _asking(jitted, ask, stage, fun)


def with_other_outside(jitted: Any, other: Callable[[], Any]) -> Any:
    """A jitted function that is `other()`, a jitted function of the same, outside of traces."""

    def ask(*_: Any) -> Any:
        return _miss(other()) if compat.outside_traces() else None

    def stage(how: str, plain: Any, args: Any, kwargs: Any) -> Any:
        return (getattr(other(), how) if compat.outside_traces() else plain)(*args, **kwargs)

    return _asking(jitted, ask, stage, None)


def _miss(jitted: Any) -> Any:
    return jitted.__getstate__()["cache_miss"]


def _asking(jitted: Any, ask: Callable[..., Any], stage: Callable[..., Any], fun: Any) -> Any:
    """A jitted function that asks where it finds no compiled program what to call in place of JAX,
    if anything, and goes through `stage` where it is traced otherwise.

    Functions call each other through this, so it has one frame on Python's stack, however many ask.
    """
    try:
        state = jitted.__getstate__()
        miss = state["cache_miss"]
    except (AttributeError, KeyError, TypeError):  # a JAX we do not know
        return jitted

    asks, plain = [ask, *getattr(miss, "asks", ())], getattr(miss, "plain", miss)

    @functools.wraps(plain)
    def cache_miss(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            for each in asks:
                instead = each(args, kwargs)
                if instead is not None:
                    return instead(*args, **kwargs)
            return plain(*args, **kwargs)
        except Exception as error:
            without_ours(error)
            raise

    vars(cache_miss).update(of=fun, asks=asks, plain=plain)
    kind: Any = type(jitted)
    made = kind.__new__(kind)
    made.__setstate__({**state, "cache_miss": cache_miss})
    own = {how: _staging(getattr(jitted, how), how, stage, fun) for how in _STAGES}
    made.__dict__ = _Attributes({**jitted.__dict__, **own})
    return made


class _Attributes(dict[str, Any]):
    """Attributes of which the stages are not copied to functions that wrap the one that has them:
    what JAX makes of a gradient of it would be lowered as the function itself.
    """

    def __iter__(self) -> Iterator[str]:
        return (name for name in super().__iter__() if name not in _STAGES)

    def keys(self) -> Any:
        return list(self)


def _staging(plain: Any, how: str, stage: Callable[..., Any], fun: Any) -> Callable[..., Any]:
    @functools.wraps(plain)
    @boundary
    def staged(*args: Any, **kwargs: Any) -> Any:
        return stage(how, plain, args, kwargs)

    staged.of = fun  # type: ignore[attr-defined]
    return staged


def jit_options(fun: Any) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """The function and the options of a jitted function; None if it is not one, or has layouts."""
    if not isinstance(fun, _JITTED):
        return None
    info, inner = fun._jit_info, fun._fun
    if any(x is not None for x in (*info.in_layouts_leaves, *info.out_layouts_leaves)):
        return None
    options: dict[str, Any] = {
        "in_shardings": _specified(info.in_shardings_treedef, info.in_shardings_leaves),
        "out_shardings": _specified(info.out_shardings_treedef, info.out_shardings_leaves),
        "static_argnums": info.static_argnums or None,
        "static_argnames": info.static_argnames or None,
        "donate_argnums": info.donate_argnums or None,
        "donate_argnames": info.donate_argnames or None,
        "keep_unused": info.keep_unused or None,
        "device": info.device,
        "backend": info.backend,
        "inline": _inline(info.inline),
        "compiler_options": dict(info.compiler_options_kvs) or None,
    }
    return inner, {name: value for name, value in options.items() if value is not None}


_JITTED: Any = type(jax.jit(lambda: None))


def _specified(tree: Any, leaves: Sequence[Any]) -> Any:
    if all(isinstance(leaf, _Unspecified) for leaf in leaves):
        return None
    return _tree.tree_unflatten(tree, leaves)


def _inline(value: Any) -> Any:
    """None for the default, which is False before 0.11 and an enum's AUTO after."""
    return None if value is False or getattr(value, "value", None) == "auto" else value
