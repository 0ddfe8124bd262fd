"""Targets: functions that are to be linted, with the types of their arguments and how to look at
them.

`lint_target` marks a function in its own module; `jaxpr-opt lint` finds it there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from jaxpr_opt.decorator import unwrap
from jaxpr_opt.errors import TargetError, check_function
from jaxpr_opt.frames import Frame, name_of
from jaxpr_opt.insight.powers import parse_limit
from jaxpr_opt.lint.modes import traceable
from jaxpr_opt.lint.options import Options, Scale, Spec, parse
from jaxpr_opt.lint.subject import Scaling, Subject, as_loss, place
from jaxpr_opt.targets import Arguments, arguments_of, check_call, parse_argument, types

F = TypeVar("F", bound=Callable[..., Any])

MAX_LAYERS = 100
"""Of decorators: there are objects that say of every attribute that they have it."""
HINT = "give arguments with --args or --args-from, or mark it: @jaxpr_opt.lint_target(args=...)"

Given = Callable[..., Any] | Sequence[Any] | None
"""Arguments as users give them: a function that returns them, or themselves, arrays as types,
arrays, or in words (`f32[8,128]`)."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A function to lint."""

    name: str
    function: Callable[..., Any]
    given: Given = None
    spec: Spec = field(default_factory=Spec)
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of `Options` that are its own."""
    source: str = ""
    """Where its arguments come from, for messages."""
    is_asked: bool = False
    """Whether they come from the command line."""

    def subject(self, defaults: Options) -> Subject:
        """What rules look at.

        Raises:
          TargetError: there are no such arguments, or the function does not take them.
        """
        options = Options(**{**fields_of(defaults), **self.settings})
        scaling = self._scaling()
        args, kwargs = self._at(None if scaling is None else scaling.own)
        function, (args, kwargs) = self._traceable((args, kwargs))
        mode = self.spec.mode
        about = Subject(
            self.name,
            function,
            args,
            kwargs,
            "as-is" if mode == "auto" else mode,
            options,
            scaling,
            self.place,
        )
        return as_loss(about) if mode == "auto" else about

    @property
    def place(self) -> Frame | None:
        """Where the function is defined."""
        return place(self.function)

    def _traceable(self, arguments: Arguments) -> tuple[Callable[..., Any], Arguments]:
        hint = "give it args" if not self.is_asked else HINT
        check_call(self.name, self.function, arguments, hint)
        try:
            return traceable(self.function, arguments, self.spec.mode, self.spec.argnums)
        except ValueError as error:
            raise TargetError(f"{self.name}: {error}") from None

    def _scaling(self) -> Scaling | None:
        scale = self.spec.scale
        if scale is None:
            if self.spec.growth:
                raise TargetError(f"{self.name}: growth needs a scale, as T=64,128,256")
            return None
        if not callable(self.given) or not _takes(self.given, scale.name):
            who = self.source or "no function"
            raise TargetError(
                f"{self.name}: scale needs arguments from a function of {scale.name}; it has {who}"
            )
        if self.spec.growth:
            try:
                parse_limit(self.spec.growth, scale.name)
            except ValueError as error:
                raise TargetError(f"{self.name}: {error}") from None
        return Scaling(
            scale.name,
            scale.sizes,
            lambda size: self._traceable(self._at(size))[1],
            _own_size(self.given, scale),
            self.spec.growth,
        )

    def _at(self, size: int | None) -> Arguments:
        """The types of the arguments: the target's own, or those of one size of its scale."""
        given, scale = self.given, self.spec.scale
        if not callable(given):
            try:
                return tuple(_argument(each) for each in given or ()), {}
            except TargetError as error:
                if self.is_asked:
                    raise
                raise TargetError(f"{self.name}: args: {error}") from error
        name = self.source or name_of(given)
        if size is not None and scale is not None:
            given = functools.partial(given, **{scale.name: size})
        return arguments_of(given, name)


def fields_of(options: Options) -> dict[str, Any]:
    """Options by their names."""
    return {name: getattr(options, name) for name in Options.__dataclass_fields__}


def _argument(given: Any) -> Any:
    return parse_argument(given) if isinstance(given, str) else types(given)


def _takes(make: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(make).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _own_size(make: Callable[..., Any], scale: Scale) -> int | None:
    """The size that arguments have if `make` is not told one: its default.

    The largest of the scale if it has none; None if it is not said in the signature.
    """
    parameter = inspect.signature(make).parameters.get(scale.name)
    if parameter is None:
        return None
    if parameter.default is parameter.empty:
        return scale.sizes[-1]
    return parameter.default if isinstance(parameter.default, int) else None


# -- marks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mark:
    """The settings that `lint_target` got."""

    function: Callable[..., Any]
    name: str
    """The function's, if it was given none."""
    is_named: bool
    args: Given
    spec: Spec
    settings: dict[str, Any]


_marks: dict[tuple[str, str], Mark] = {}
"""By module and name, in the order in which modules were imported."""


@overload
def lint_target(fun: F, *, args: Given = None, name: str = "", **settings: Any) -> F: ...
@overload
def lint_target(
    fun: None = None, *, args: Given = None, name: str = "", **settings: Any
) -> Callable[[F], F]: ...
def lint_target(
    fun: F | None = None, *, args: Given = None, name: str = "", **settings: Any
) -> F | Callable[[F], F]:
    """Mark a function as a target that `jaxpr-opt lint` checks when it is given the module.

    Stands above or below `optimize` and `jax.jit`, and does not change the function.

    Args:
      fun: the function; without it, a decorator.
      args: a function that returns the arguments, ``args`` or ``(args, kwargs)``, as
        `jax.ShapeDtypeStruct` objects or arrays (those are never made); or a tuple of them, where
        ``"f32[8,128]"`` is a type, too.
      name: the name of the target; by default that of the function.
      **settings: as in `pyproject.toml`: ``mode``, ``argnums``, ``ignore``, ``scale``, ``growth``,
        ``min_bytes``, ``min_share``, ``max_residual_bytes``, ``max_residual_ratio``,
        ``max_peak_bytes``, ``memory``.

    Raises:
      TypeError: `fun` cannot be called, or `args` is neither a function nor a tuple.
      ValueError: a setting is unknown or invalid.

    Example:
      >>> @jaxpr_opt.lint_target(args=("f32[8,8]", "f32[4,8]"), max_residual_bytes="1 MiB")
      ... def loss(w, x):
      ...     return jnp.mean((x @ w) ** 2)
      >>> loss.__name__
      'loss'
    """
    if args is not None and not callable(args) and not isinstance(args, tuple | list):
        raise TypeError(f"lint_target: args must be a function or a tuple, got {args!r}")
    if fun is None:
        return lambda fun: lint_target(fun, args=args, name=name, **settings)
    check_function(fun, "lint_target")
    try:
        spec, options = split_settings(settings)
    except ValueError as error:
        raise ValueError(f"lint_target: {error}") from None
    called = name or str(getattr(fun, "__qualname__", name_of(fun)))
    _marks[str(fun.__module__), called] = Mark(fun, called, bool(name), args, spec, options)
    return fun


def split_settings(given: dict[str, Any], also: Iterable[str] = ()) -> tuple[Spec, dict[str, Any]]:
    """How a target is looked at, and the options that are its own; `also` may be written, too."""
    parsed = parse(given, Spec, Options, also=also)
    own = {name: parsed.pop(name) for name in Options.__dataclass_fields__ if name in parsed}
    return Spec(**parsed), own


def marked(module: str) -> list[Mark]:
    """What was marked in a module."""
    return [mark for (home, _), mark in _marks.items() if home == module]


def is_same(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether one function is the other, jitted or optimised."""
    return bool({id(f) for f in _layers(one)} & {id(f) for f in _layers(other)})


def _layers(fun: Any) -> list[Any]:
    """A function, and all that is wrapped in it."""
    layers = [fun]
    while len(layers) < MAX_LAYERS:
        origin = unwrap(layers[-1])
        inner = origin.fun if origin is not None else getattr(layers[-1], "__wrapped__", None)
        if inner is None:
            break
        layers.append(inner)
    return layers
