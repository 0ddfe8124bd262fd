"""The function that `optimize` passes to `jax.jit`: a program behind one equation.

There is one for each function, pipeline and set of switches, so JAX finds what it has traced and
compiled before, however often `optimize` is called. It refers to the user's function weakly, and
lives as long: its caller, the result of `optimize`, refers to the function, too.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr

from jaxpr_opt import settings
from jaxpr_opt.boundary import compiling, loops, mutation, rules
from jaxpr_opt.boundary.static_leaves import Statics, WithStatics, divided
from jaxpr_opt.bridge import compat, compat_call, compat_types, guard
from jaxpr_opt.bridge.interpreter_stack import with_large_frame
from jaxpr_opt.cost import limits
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.frames import name_of

Check = Callable[[Sequence[Any], dict[str, Any], ClosedJaxpr], None]
"""Called with the arguments of a call and its program; raises for what the user must mend."""

_WAYS = 64
"""In how many ways one function may be optimised before the oldest is forgotten."""


_COPIED = tuple(each for each in functools.WRAPPER_ASSIGNMENTS if not each.startswith("__type"))


class Wrapped:
    """A function with its program behind one equation; to be called by `jax.jit`.

    Args:
      refer: gives the function.
      pipeline: what optimises the program.
      check: what to ask of what a call donates.
    """

    __slots__ = ("__dict__", "__weakref__", "_check", "_made", "_pipeline", "_refer")

    def __init__(
        self, refer: Callable[[], Any], pipeline: Pipeline, check: Check | None = None
    ) -> None:
        self._refer, self._pipeline, self._check = refer, pipeline, check
        self._made: dict[Any, Any] = {}
        fun = refer()
        known: dict[str, Any] = {each: getattr(fun, each) for each in _COPIED if hasattr(fun, each)}
        self.__dict__.update(known | {"__name__": name_of(fun)})

    @property
    def __wrapped__(self) -> Any:
        """The function: JAX reads its signature and its source, for messages."""
        return self._refer()

    def __repr__(self) -> str:
        return repr(self._refer())

    def __reduce__(self) -> Any:
        """A copy has no other owner, so it holds the function."""
        return _holding, (self._refer(), self._pipeline, self._check)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        config: Any = jax.config
        fun = self._refer()
        off = config.jax_disable_jit or settings.current().disable or not guard.is_open()
        # What has the program deep inside of others optimises it with them.
        off = off or guard.depth() >= limits.NESTED_FUNCTIONS
        # Where nothing is staged, `jax_debug_nans` looks for the line at fault.
        if off or not compat.is_staging() or compat.is_in_kernel():
            return fun(*args, **kwargs)
        try:  # as `guard.attempt` does, with fewer frames: functions that call each other are many
            return _optimized(fun, self._pipeline, self._check, args, kwargs)
        except Exception as error:  # noqa: BLE001  the user's is raised
            trouble = guard.not_ours(error)
        return guard.instead(trouble, lambda: fun(*args, **kwargs), name_of(fun))

    def held(self) -> Wrapped:
        """The same, referring to the function itself."""
        return _holding(self._refer(), self._pipeline, self._check)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value that `make` returned for this key, if the key is hashable."""
        try:
            hash(key)
        except TypeError:
            return make()
        with _lock:
            if len(self._made) >= _WAYS:
                self._made.clear()
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]


def _holding(fun: Callable[..., Any], pipeline: Pipeline, check: Check | None) -> Wrapped:
    return Wrapped(lambda: fun, pipeline, check)


# -- one for a function --------------------------------------------------------------------------

_known: WeakKeyDictionary[Any, tuple[Any, Callable[..., Wrapped]]] = WeakKeyDictionary()
"""For a function: a reference to that of all that are equal to it which came first, and what makes
a `Wrapped` of it, and remembers it.
"""
_lock = threading.RLock()


def wrapped(
    fun: Callable[..., Any], pipeline: Pipeline, check: Check | None
) -> tuple[Callable[..., Any], Wrapped]:
    """A function equal to `fun`, to be kept as long as its `Wrapped`, and that."""
    try:
        kept, make = _remembered(fun)
    except TypeError:  # it is not hashable, or cannot be referred to weakly
        return fun, _holding(fun, pipeline, check)
    return kept, make(pipeline, check, settings.current())


def _remembered(fun: Callable[..., Any]) -> tuple[Any, Callable[..., Wrapped]]:
    with _lock:
        refer, make = _known.get(fun) or (_dead, None)
        kept = refer()
        if kept is None or make is None:
            refer = weakref.ref(fun)
            make = functools.lru_cache(_WAYS)(functools.partial(_make, refer))
            _known[fun] = refer, make
            kept = fun
        return kept, make


def _make(refer: Callable[[], Any], pipeline: Pipeline, check: Check | None, _: Any) -> Wrapped:
    """Settings are read where the program is traced, which is once for each of them."""
    return Wrapped(refer, pipeline, check)


def _dead() -> None:
    return None


def jitted(wrapped: Wrapped, options: dict[str, Any]) -> Any:
    """The function as `jax.jit` compiles it, but for calls with leaves that are not arrays."""

    def make() -> tuple[Any, WithStatics]:
        plain = compiling.jit(wrapped, **options)
        resolved = compat_call.jit_options(plain) or (wrapped, options)
        return plain, WithStatics(wrapped, compiling.jit, resolved[1])

    plain, statics = wrapped.once(tuple(sorted(options.items())), make)
    return compat_call.with_fallback(plain, statics, wrapped.held())


# -- its program ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Static:
    """An argument that is static, as a leaf."""

    value: Any


@with_large_frame
def _optimized(
    fun: Callable[..., Any],
    pipeline: Pipeline,
    check: Check | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Trace a function, and bind its program as one equation."""
    held = [_held(each) for each in args], {name: _held(x) for name, x in kwargs.items()}
    leaves, tree = jax.tree.flatten(held)
    traced = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tracer)]
    traces: list[_Trace] = []

    def body(*inputs: Any) -> list[Any]:
        full = list(leaves)
        for i, tracer in zip(traced, inputs, strict=True):
            full[i] = tracer
        given, by_name = jax.tree.unflatten(tree, full)
        given, by_name = [*map(_value, given)], {k: _value(x) for k, x in by_name.items()}
        watch = mutation.Watch(given, by_name)
        with guard.running(), loops.explained():
            result = fun(*given, **by_name)
        arrays, statics = divided(result)
        changed, values = watch.changed(result, inputs, names)
        traces.append(_Trace(statics, len(arrays), changed))
        return [*arrays, *values]

    every = compat_call.leaf_names(fun, *held)
    names = [every[i] for i in traced]
    info = compat_call.describe(body, fun, names)
    tracers = [leaves[i] for i in traced]
    avals = [compat_types.aval_of(each) for each in tracers]
    if compat.can_trace(avals):
        jaxpr = compat.trace(body, avals, info)
    else:
        jaxpr = jax.make_jaxpr(body)(*tracers)
    made = traces[-1]
    if made.changed:
        jaxpr = mutation.checked(jaxpr, made.arrays, made.changed, name_of(fun))
    if check is not None:
        check(args, kwargs, jaxpr)
    return made.statics.filled(rules.call(jaxpr, pipeline, name_of(fun), tracers))


class _Trace(NamedTuple):
    """What is known of a function once it was traced."""

    statics: Statics
    """Of the result."""
    arrays: int
    """How many arrays are in it."""
    changed: list[mutation.Changed]
    """What else is an output of the program."""


def _held(argument: Any) -> Any:
    dynamic = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(argument))
    return argument if dynamic else _Static(argument)


def _value(argument: Any) -> Any:
    return argument.value if type(argument) is _Static else argument
