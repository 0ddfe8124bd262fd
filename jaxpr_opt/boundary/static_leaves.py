"""Arguments with leaves that are not arrays: functions, strings, modules, settings.

`jax.jit` refuses them. Here they are static, as in `equinox.filter_jit`: the program is traced once
for each set of them, and the arrays beside them are its arguments. So they must be hashable by
value. A pytree of the user is only ever rebuilt from its own leaves, or from arrays and tracers in
their place, because its constructor may inspect them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxpr_opt.boundary import compiling
from jaxpr_opt.boundary.stages import Stage
from jaxpr_opt.bridge import compat_call, guard

Place = int | str
"""Where an argument is: its position, or its name."""

_PROGRAMS = 256
"""How many sets of static leaves of one function are remembered."""


# -- pytrees -------------------------------------------------------------------------------------


class Statics(NamedTuple):
    """A pytree without its arrays."""

    tree: Any
    positions: tuple[int, ...]
    """Of the leaves that are not arrays."""
    leaves: tuple[Any, ...]

    def filled(self, arrays: Sequence[Any]) -> Any:
        """The pytree, with these arrays."""
        given, own = iter(arrays), dict(zip(self.positions, self.leaves, strict=True))
        every = range(self.tree.num_leaves)
        return jax.tree.unflatten(self.tree, [own[i] if i in own else next(given) for i in every])


def divided(value: Any) -> tuple[list[Any], Statics]:
    """The arrays of a pytree, and what is left of it."""
    leaves, tree = jax.tree.flatten(value)
    static = [i for i, leaf in enumerate(leaves) if not compat_call.is_array(leaf)]
    arrays = without(leaves, static)
    return arrays, Statics(tree, tuple(static), tuple(leaves[i] for i in static))


def without(values: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """Those of the values that are at no such position."""
    dropped = frozenset(positions)
    return [value for i, value in enumerate(values) if i not in dropped]


def spread(prefix: Any, whole: Any) -> list[Any]:
    """A leaf of `prefix`, which is a prefix of `whole`, for every leaf of `whole`; None is a leaf
    of it.
    """
    tree: Any
    leaves, tree = jax.tree.flatten(prefix, is_leaf=lambda x: x is None)
    below = [len(jax.tree.leaves(each)) for each in tree.flatten_up_to(whole)]
    return [leaf for leaf, count in zip(leaves, below, strict=True) for _ in range(count)]


@jax.tree_util.register_pytree_node_class
class Results:
    """What a function returns, as a pytree whose leaves are all arrays."""

    def __init__(self, arrays: Sequence[Any], statics: Statics) -> None:
        self.arrays, self.statics = arrays, statics

    def tree_flatten(self) -> tuple[Sequence[Any], Statics]:
        return self.arrays, self.statics

    @classmethod
    def tree_unflatten(cls, statics: Statics, arrays: Sequence[Any]) -> Results:
        return cls(arrays, statics)

    def whole(self) -> Any:
        """The value that the function returned."""
        return self.statics.filled(self.arrays)


# -- arguments -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameters:
    """Some of a function's parameters, as options of `jax.jit` name them."""

    nums: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: dict[str, Any], kind: str) -> Parameters:
        """Those that are `kind`, ``static`` or ``donate``, by resolved options."""
        nums, names = (options.get(f"{kind}_arg{each}") or () for each in ("nums", "names"))
        return cls(tuple(nums), tuple(names))

    def __bool__(self) -> bool:
        return bool(self.nums or self.names)

    def has(self, place: Place, count: int) -> bool:
        """Whether the argument there, one of `count` positional ones, is for one of them."""
        if isinstance(place, str):
            return place in self.names
        return place in self.nums or place - count in self.nums


class Call(NamedTuple):
    """The arguments of a call without their arrays: the part of it that is static."""

    statics: Statics
    """Of the pair of positional arguments and those by name that are not static as a whole."""
    fixed: tuple[tuple[Place, Any], ...]
    """The others, each with its place."""

    def arguments(self, arrays: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the call."""
        given, by_name = self.statics.filled(arrays)
        args, kwargs = list(given), dict(by_name)
        for place, value in self.fixed:
            if isinstance(place, str):
                kwargs[place] = value
            else:
                args.insert(place, value)
        return args, kwargs

    def owners(self) -> Iterator[Place]:
        """For every leaf of `statics`, in which argument it is."""
        positional, by_name = self.statics.tree.children()
        given = list(positional.children())
        fixed = {place for place, _ in self.fixed}
        numbers = [i for i in range(len(given) + len(fixed)) if i not in fixed]
        named = zip(by_name.node_data()[1], by_name.children(), strict=True)
        for place, tree in [*zip(numbers, given, strict=False), *named]:
            yield from [place] * tree.num_leaves


def split_off(
    static: Parameters, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[tuple[Place, Any], ...]]:
    """The positional arguments and those by name that are not static, and, with its place, each
    that is.
    """
    if not static:
        return tuple(args), kwargs, ()
    given: list[tuple[Place, Any]] = [*enumerate(args), *sorted(kwargs.items())]
    fixed = {place: x for place, x in given if static.has(place, len(args))}
    return (
        tuple(x for i, x in enumerate(args) if i not in fixed),
        {name: x for name, x in kwargs.items() if name not in fixed},
        tuple(fixed.items()),
    )


# -- calls ---------------------------------------------------------------------------------------


class WithStatics:
    """Calls of a function whose arguments have leaves that are not arrays.

    Args:
      fun: the function.
      make: as `jax.jit`: makes a function of arrays from one, and options.
      options: resolved ones of `jax.jit`, for `fun`.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        make: Callable[..., Callable[..., Any]],
        options: dict[str, Any],
    ) -> None:
        self._fun, self._make, self._options = fun, make, options
        self._static = Parameters.of(options, "static")
        self._donated = Parameters.of(options, "donate")
        self._program = functools.lru_cache(_PROGRAMS)(self._made)

    def __reduce__(self) -> Any:
        return WithStatics, (self._fun, self._make, self._options)

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
        """What to do for these arguments; None if all of their leaves are arrays."""
        taken = guard.attempt(lambda: self._taken(args, kwargs), lambda: None)
        if taken is None:
            return None
        arrays, call, shardings = taken
        return lambda: self._program(call, shardings)(*arrays).whole()

    def stage(self, how: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of the method `how` of a jitted function, ``trace``, ``lower`` or
        ``eval_shape``, for these arguments; None if all of their leaves are arrays.
        """
        taken = guard.attempt(lambda: self._taken(args, kwargs), lambda: None)
        if taken is None:
            return None
        arrays, call, shardings = taken
        made = getattr(self._program(call, shardings), how)(*arrays)
        if isinstance(made, Results):
            return made.whole()
        return Stage(made, functools.partial(self._arrays, call), Results.whole)

    def _taken(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Call, Any] | None:
        """The arrays of a call, the rest of it, and the shardings of the arrays."""
        given, by_name, fixed = split_off(self._static, args, kwargs)
        arrays, statics = divided((given, by_name))
        if not statics.positions:
            return None
        self._check(statics, args, kwargs)
        return arrays, Call(statics, fixed), self._shardings(given, statics)

    def _arrays(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """The arrays of a call of what was compiled for `call`."""
        given, by_name, _ = split_off(self._static, args, kwargs)
        arrays, statics = divided((given, by_name))
        if statics != call.statics:
            raise TypeError(
                f"optimize: {self._name} was compiled for other leaves that are not arrays:"
                f" expected {call.statics.leaves}, got {statics.leaves}"
            )
        return arrays

    def _made(self, call: Call, shardings: tuple[Any, ...] | None) -> Callable[..., Results]:
        def flat(*arrays: Any) -> Results:
            args, kwargs = call.arguments(arrays)
            return Results(*divided(self._fun(*args, **kwargs)))

        flat.__name__ = flat.__qualname__ = getattr(self._fun, "__name__", "flat")
        kinds = ("static_arg", "donate_arg", "in_shardings")
        options = {k: v for k, v in self._options.items() if not k.startswith(kinds)}
        if shardings is not None:
            options["in_shardings"] = shardings
        if self._donated:
            options["donate_argnums"] = self._donated_arrays(call)
        return self._make(flat, **options)

    def _donated_arrays(self, call: Call) -> tuple[int, ...]:
        count = len(call.statics.tree.children()[0].children())
        count += sum(isinstance(place, int) for place, _ in call.fixed)
        owners = without(list(call.owners()), call.statics.positions)
        return tuple(i for i, owner in enumerate(owners) if self._donated.has(owner, count))

    def _shardings(self, args: Sequence[Any], statics: Statics) -> tuple[Any, ...] | None:
        results: Any = jax.tree.structure(self._options.get("out_shardings"))
        if results.num_nodes > 1:
            raise guard.users(
                ValueError(
                    f"optimize: out_shardings of {self._name} must be one for all results, as an"
                    f" argument has leaves that are not arrays ({statics.leaves[0]!r})"
                )
            )
        if "in_shardings" not in self._options:
            return None
        return tuple(without(spread(self._options["in_shardings"], args), statics.positions))

    def _check(self, statics: Statics, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        for position, leaf in zip(statics.positions, statics.leaves, strict=True):
            if not tells_programs_apart(leaf):
                static = (self._static.nums, self._static.names)
                name = compat_call.leaf_names(self._fun, args, kwargs, static)[position]
                raise guard.users(
                    TypeError(
                        f"optimize: argument {name} of {self._name} is not an array but of type"
                        f" {_kind(leaf)}, so it is static and must be hashable by what"
                        " it holds: make it a pytree or an array, or name it in static_argnums"
                    )
                )

    @property
    def _name(self) -> str:
        return str(getattr(self._fun, "__name__", "the function"))


def with_statics(jitted: Any, fun: Callable[..., Any], options: dict[str, Any]) -> Any:
    """What `jax.jit` made of a function with these options, and of such calls of it."""
    return compat_call.with_fallback(jitted, WithStatics(fun, compiling.jit, options), fun)


def tells_programs_apart(leaf: Any) -> bool:
    """Whether what is equal to it stands for the same program, now and later.

    An object that is only equal to itself may hold something else the next time: it does not, if
    it can change.  What can be called may be what `jax.jit` takes for a function, without arrays.
    """
    try:
        hash(leaf)
    except TypeError:
        return False
    owner = getattr(leaf, "__self__", leaf) if isinstance(leaf, types.MethodType) else leaf
    kind = type(owner)
    immutable = (type, types.ModuleType, types.FunctionType, functools.partial)
    if kind.__hash__ is not object.__hash__ or isinstance(owner, immutable):
        return True
    attributes = getattr(owner, "__dict__", {})
    if callable(owner):
        return not any(map(_is_data, jax.tree.leaves([*attributes.values()])))
    return not attributes and not any(getattr(each, "__slots__", ()) for each in kind.__mro__)


def _is_data(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _kind(leaf: Any) -> str:
    dtype = getattr(leaf, "dtype", None)
    return type(leaf).__name__ + ("" if dtype is None else f" of dtype {dtype}")
