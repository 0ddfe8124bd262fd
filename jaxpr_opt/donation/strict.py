"""Strict `donate_argnums`: a donation that JAX would warn of, or silently ignore, is an error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from jaxpr_opt.boundary.static_leaves import Call, Parameters, divided, split_off, without
from jaxpr_opt.bridge import compat, compat_call, guard
from jaxpr_opt.bridge.dtypes import type_text
from jaxpr_opt.frames import name_of
from jaxpr_opt.ir.graph import aval_bytes
from jaxpr_opt.sizes import bytes_text

_SHOWN = 3


@dataclass(frozen=True)
class Check:
    """Raises `ValueError` if a call donates what cannot be used."""

    name: str
    static: Parameters
    donated: Parameters

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any], jaxpr: ClosedJaxpr) -> None:
        """To be called while a call is traced, with its arguments, static ones included, and its
        program.
        """
        donated = _donated(self.static, self.donated, args, kwargs)
        names = getattr(compat.debug_info(jaxpr), "arg_names", None) or ()
        wrong = [
            f"{names[i] if len(names) == len(donated) else f'argument {i}'} {type_text(aval)}"
            f" ({bytes_text(aval_bytes(aval))}): {reason}"
            for i, reason in unusable(jaxpr.in_avals, donated, jaxpr.out_avals)
            if (aval := jaxpr.in_avals[i]) is not None
        ]
        if wrong:
            more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            raise guard.users(
                ValueError(
                    f"{self.name} cannot use what donate_argnums or donate_argnames donate:"
                    f" {'; '.join(wrong[:_SHOWN])}{more}."
                    f' Do not donate it, or write donate="matched" to donate only what can be used'
                )
            )


def donated_arrays(
    options: dict[str, Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> list[bool]:
    """Which of the arrays of a call are donated, by resolved options of `jax.jit`."""
    static, donated = Parameters.of(options, "static"), Parameters.of(options, "donate")
    return _donated(static, donated, args, kwargs)


def _donated(
    static: Parameters, donated: Parameters, args: Sequence[Any], kwargs: dict[str, Any]
) -> list[bool]:
    given, by_name, fixed = split_off(static, args, kwargs)
    call = Call(divided((given, by_name))[1], fixed)
    owners = without(list(call.owners()), call.statics.positions)
    return [donated.has(owner, len(args)) for owner in owners]


def check(fun: Callable[..., Any], options: dict[str, Any]) -> Check:
    """What to ask of calls of `fun`, jitted with these options, `donate_argnums` or
    `donate_argnames` among them.
    """
    _, resolved = compat_call.jit_options(jax.jit(fun, **options)) or (fun, {})
    name = name_of(fun)
    return Check(name, Parameters.of(resolved, "static"), Parameters.of(resolved, "donate"))


def unusable(
    inputs: Sequence[Any], donated: Sequence[bool], outputs: Sequence[Any]
) -> list[tuple[int, str]]:
    """Which of the donated inputs cannot become an output, and why; all are abstract values.

    JAX takes inputs and outputs of one shape and dtype as they come.  What is left may become an
    output of another type, of as many elements: XLA can use that if they are of one size.
    """
    left = Counter(map(_type, outputs))
    unmatched = []
    for i, aval in enumerate(inputs):
        if donated[i] and aval_bytes(aval):
            if left[_type(aval)]:
                left[_type(aval)] -= 1
            else:
                unmatched.append(i)
    sizes = Counter(key[3] for key in left.elements())
    found = []
    for i in unmatched:
        if sizes[_type(inputs[i])[3]]:
            sizes[_type(inputs[i])[3]] -= 1
            continue
        same = sum(_type(aval) == _type(inputs[i]) for aval in outputs)
        text = type_text(inputs[i])
        reason = f"more arguments than results that are {text} are donated"
        found.append((i, reason if same else f"no result is {text}"))
    return found


def _type(aval: Any) -> tuple[Any, ...]:
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or dtype is None or not aval_bytes(aval):
        return (None, None, None, None)
    memory = getattr(aval, "memory_space", None)
    return shape, dtype, memory, (math.prod(shape), aval_bytes(aval), memory)
