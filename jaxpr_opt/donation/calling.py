"""Functions that donate, call by call, the arrays that can be donated.

`jax.jit` donates whole arguments, and warns of what in them was not usable.  Here a function is
compiled on the flat list of its arrays, with those that have a match donated, in the order that
makes JAX pair each with the result it was matched with.  A call is then a call of that function.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from jaxpr_opt.boundary import compiling
from jaxpr_opt.boundary.stages import Stage
from jaxpr_opt.boundary.static_leaves import (
    Call,
    Parameters,
    Statics,
    WithStatics,
    split_off,
    spread,
    with_statics,
)
from jaxpr_opt.boundary.wrapping import Wrapped
from jaxpr_opt.bridge import compat, compat_call, compat_types, guard
from jaxpr_opt.bridge.compat_frames import without_ours
from jaxpr_opt.donation import caller
from jaxpr_opt.donation.plan import Donation, donation
from jaxpr_opt.donation.sharing import passed_twice, same_buffers
from jaxpr_opt.donation.variant import OtherTypesError, Variant, compiled
from jaxpr_opt.ir.importer import import_jaxpr

Mode = Literal["matched", "auto"]
Positions = frozenset[int]
NOTHING: Positions = frozenset()
ARGUMENTS = ("argnums", "argnames")


class Donating:
    """A jitted function that donates arrays: all that match a result (mode `matched`), or those of
    them that its caller gives up (`auto`, see `jaxpr_opt.donation.caller`).

    Under a transformation of JAX it is the jitted function without donation.

    Args:
      fun: the function; its program is optimised where it is traced.
      mode: what to donate.
      options: `jax.jit`'s; `donate_argnums` and `donate_argnames` say which arguments may be
        donated; without them all may.

    Raises:
      ValueError: the shardings say layouts, too.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        mode: Mode,
        options: dict[str, Any],
        variants: dict[Any, list[Variant]] | None = None,
    ) -> None:
        self.__name__ = ""
        functools.update_wrapper(self, fun, updated=())
        self.mode = mode
        self._given = fun, options
        known = compat_call.jit_options(jax.jit(fun, **options))
        if known is None:
            raise guard.users(
                ValueError(f"optimize: donate={mode!r} does not go with layouts in shardings")
            )
        resolved = known[1]
        self._donated = Parameters.of(resolved, "donate")
        self._restricted = any(options.get(f"donate_{each}") is not None for each in ARGUMENTS)
        self._options = {k: v for k, v in resolved.items() if not k.startswith("donate_")}
        self._static = Parameters.of(resolved, "static")
        self._plain: Any = with_statics(compiling.jit(fun, **self._options), fun, self._options)
        static = {name: resolved[name] for name in resolved if name.startswith("static_")}
        self._inlined: Any = jax.jit(fun, inline=True, **static)
        self._statics = WithStatics(fun, functools.partial(_donating, mode), resolved)
        self._variants: dict[Any, list[Variant]] = {} if variants is None else variants

    def __reduce__(self) -> Any:
        """A copy, which holds the function."""
        fun, options = self._given
        return Donating, (fun.held() if isinstance(fun, Wrapped) else fun, self.mode, options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            if not compat.outside_traces():
                return self._plain(*args, **kwargs)
            if self.mode == "matched":
                return self._run(args, kwargs)
            given = caller.given_up(sys._getframe(1), self, args, kwargs)  # noqa: SLF001
            return self._run(args, kwargs, given) if given else self._plain(*args, **kwargs)
        except Exception as error:
            without_ours(error)
            raise

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<{self.__name__}, donate={self.mode!r}>"

    # -- what jitted functions have --------------------------------------------------------------

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As of a jitted function; what is donated is decided later."""
        return self._plain.trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As of a jitted function."""
        return self._plain.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        """As of a jitted function."""
        self._variants.clear()
        self._plain.clear_cache()
        self._inlined.clear_cache()

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As of a jitted function, donating what matches; in mode `auto` nothing, as there is no
        caller who could give something up.
        """
        if self.mode == "auto":
            return self._plain.lower(*args, **kwargs)
        if (instead := self._statics.stage("lower", args, kwargs)) is not None:
            return instead
        leaves, tree, fixed = self._taken_apart(args, kwargs)
        variant = self._prepare(args, kwargs, tree, fixed, None, NOTHING)
        if not variant.donated:
            return self._plain.lower(*args, **kwargs)
        lowered = variant.run.lower(*variant.order(leaves))
        return Stage(lowered, lambda *call: variant.order(self._leaves(*call)), variant.finish)

    def donation(self, *args: Any, **kwargs: Any) -> Donation:
        """The arguments that a call donates, with these arguments or arrays of these types.

        In mode `auto`: what would be, were all arguments given up.
        """
        leaves, tree, fixed = self._taken_apart(args, kwargs)
        twice = passed_twice(leaves, range(len(leaves)))
        return self._prepare(args, kwargs, tree, fixed, None, twice).donation

    # -- calls -----------------------------------------------------------------------------------

    def _run(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: frozenset[int] | None = None,
        excluded: Positions = NOTHING,
    ) -> Any:
        """Call, donating of the arguments `given`, or of all, what matches and is not excluded."""
        leaves, tree, fixed = self._taken_apart(args, kwargs)
        known = self._variants.setdefault((tree, fixed, given, excluded), [])
        variant = known[0] if len(known) == 1 else _fitting(known, leaves)
        if variant is None:
            if (instead := self._statics(args, kwargs)) is not None:
                return instead()
            variant = self._decided(args, kwargs, tree, fixed, given, excluded)
            if variant is None:
                return self._plain(*args, **kwargs)
            known.append(variant)
        if not variant.donated:
            return self._plain(*args, **kwargs)
        # What a caller gives up is referred to once.
        if given is None and (twice := passed_twice(leaves, variant.donated)):
            return self._run(args, kwargs, given, excluded | twice)
        try:
            return variant.finish(variant.run(*variant.order(leaves)))
        except OtherTypesError as other:
            fresh = self._prepare(args, kwargs, tree, fixed, given, excluded)
            same = next((each for each in known if each.does_as(fresh)), None)
            if same is None:
                known.append(fresh)
            (same or fresh).types.add(other.types)
            return self._run(args, kwargs, given, excluded)
        except TypeError:  # it comes first where a leaf is no array, but was one before
            if (instead := self._statics(args, kwargs)) is None:
                raise
            return instead()
        except jax.errors.JaxRuntimeError:  # nothing has run yet if it is about buffers used twice
            shared = same_buffers(leaves, variant.donated)
            if not shared:
                raise
            return self._run(args, kwargs, given, excluded | shared)

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        return list(self._taken_apart(args, kwargs)[0])

    def _taken_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
        """The leaves of the arguments that are traced, their structure, and the other arguments."""
        if not self._static:
            return *jax.tree.flatten((args, kwargs)), ()
        given, by_name, fixed = split_off(self._static, args, kwargs)
        return *jax.tree.flatten((given, by_name)), fixed

    # -- first calls -----------------------------------------------------------------------------

    def _decided(self, args: Any, kwargs: Any, *rest: Any) -> Variant | None:
        """The decision of `_prepare`; None where that fails, but not where the function does."""

        def traced() -> Variant | None:
            self._inlined.trace(*args, **kwargs)
            return None

        return guard.attempt(lambda: self._prepare(args, kwargs, *rest), traced, self.__name__)

    def _prepare(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tree: Any,
        fixed: Any,
        given: frozenset[int] | None,
        excluded: Positions,
    ) -> Variant:
        """Decide what to donate of arguments of these types, and what to compile."""
        inlined = self._inlined
        traced = inlined.trace(*args, **kwargs)
        graph = import_jaxpr(traced.jaxpr, "final", self.__name__)
        call = Call(Statics(tree, (), ()), fixed)
        allowed = [i for i in self._candidates(call, len(args), given) if i not in excluded]
        if given is not None:  # what keys of random numbers wrap is not looked at by `caller`
            avals = traced.jaxpr.in_avals
            allowed = [i for i in allowed if not _is_extended(avals[i])]
        shardings = self._shardings(args, kwargs)
        found = donation(graph, allowed, shardings, self._out_shardings(traced))

        def run(leaves: Sequence[Any]) -> Any:  # lives on: it must refer to no array, and not to us
            positional, by_name = call.arguments(leaves)
            return inlined(*positional, **by_name)

        options = {k: v for k, v in self._options.items() if not k.startswith(("static_", "in_"))}
        if "in_shardings" in self._options:
            options["in_shardings"] = shardings
        return compiled(self.__name__, run, found, traced, options)

    def _candidates(self, call: Call, count: int, given: frozenset[int] | None) -> list[int]:
        """The arrays, by position among all, that may be donated."""
        return [
            i
            for i, owner in enumerate(call.owners())
            if (not self._restricted or self._donated.has(owner, count))
            and (given is None or owner in given)
        ]

    def _shardings(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Where the arrays are, None for those on one device: they may come from anywhere."""
        if "in_shardings" in self._options:
            return spread(self._options["in_shardings"], split_off(self._static, args, kwargs)[0])
        known = [getattr(leaf, "sharding", None) for leaf in self._leaves(args, kwargs)]
        return [s if s is not None and s.num_devices > 1 else None for s in known]

    def _out_shardings(self, traced: Any) -> list[Any]:
        if "out_shardings" not in self._options:
            return [None] * len(traced.jaxpr.out_avals)
        return spread(self._options["out_shardings"], traced.out_info)


def _donating(mode: Mode, fun: Callable[..., Any], **options: Any) -> Donating:
    return Donating(fun, mode, options)


def _fitting(variants: Sequence[Variant], leaves: Sequence[Any]) -> Variant | None:
    """The variant for these arrays, of several for one structure."""
    made = tuple(map(compat_types.aval_of, leaves)) if variants else ()
    return next((each for each in variants if made in each.types), None)


def _is_extended(aval: Any) -> bool:
    return bool(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended))
