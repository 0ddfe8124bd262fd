"""JAX's private parts that `everywhere` needs: where a program is about to be compiled, and where a
loop is differentiated op by op.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax._src import core as _core
from jax._src import pjit as _pjit
from jax._src import traceback_util as _traceback_util
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching

from jaxpr_opt.bridge import compat, compat_source, compat_types, guard
from jaxpr_opt.frames import is_machinery

_traceback_util.register_exclusion(__file__)  # errors of the user's functions pass through here

_WAYS_IN = ("_run_python_pjit", "_resolve_and_lower")
"""What runs a program that `jax.jit` has traced, and what lowers one."""


class _Ways:
    """JAX's own functions of these names, or what stands for them (see `compat_watch`)."""

    def __init__(self) -> None:
        self.run: Any
        self.lower: Any
        self.run, self.lower = (getattr(_pjit, name, None) for name in _WAYS_IN)
        self.asks = False  # whether JAX asks

    def set(self, *functions: Any) -> None:
        for name, function in zip(_WAYS_IN, functions, strict=True):
            if function is not None:
                setattr(_pjit, name, function)


ways = _Ways()
_LOOPS: Any = (jax.lax.scan_p, jax.lax.while_p, jax.lax.cond_p)
_DIFFERENTIATING = (_ad.JVPTrace, _ad.LinearizeTrace)
_TRANSFORMING = (*_DIFFERENTIATING, _batching.BatchTrace)
_set_current_trace: Any = _core.set_current_trace


class Hooks(NamedTuple):
    """What is asked where JAX runs a program that is not part of another one."""

    program: Callable[[Any, str], Any]
    """Of the program of a jitted function, and its name: what stands for it."""
    options: Callable[[Any], dict[str, Any]]
    """Of what stands for a program: options of XLA for it."""
    loop: Callable[..., Callable[..., Sequence[Any]] | None]
    """Of a control flow primitive, the types of its operands and its parameters: what to call with
    the operands instead; None to do as JAX does."""


def install(hooks: Hooks) -> None:
    """Have JAX ask."""
    if ways.run is None or ways.lower is None:
        guard.unknown("jit does not say where it compiles a program")
        return

    @functools.wraps(ways.run)
    def run(found: Any, *rest: Any) -> Any:
        if _runs(_core.trace_ctx.trace):
            found = guard.attempt(lambda: _replaced(found, hooks), lambda: found)
        return ways.run(found, *rest)

    @functools.wraps(ways.lower)
    def lower(args: Any, *, jaxpr: Any, name: str, **params: Any) -> Any:
        made = hooks.program(jaxpr, name)
        if "compiler_options_kvs" in params and (own := hooks.options(made)):
            given = params["compiler_options_kvs"]
            params["compiler_options_kvs"] = (*(own | dict(given)).items(),)
        return ways.lower(args, jaxpr=made, name=name, **params)

    ways.asks = True
    ways.set(run, lower)
    for primitive in _LOOPS:
        primitive.bind_with_trace = _asking(primitive, hooks)


def uninstall() -> None:
    """Leave JAX as it was."""
    ways.asks = False
    ways.set(ways.run, ways.lower)
    for primitive in _LOOPS:
        vars(primitive).pop("bind_with_trace", None)


def _replaced(found: Any, hooks: Hooks) -> Any:
    params = found.params
    made = hooks.program(params["jaxpr"], params["name"])
    return found._replace(params={**params, "jaxpr": made})


def _asking(primitive: Any, hooks: Hooks) -> Callable[..., Any]:
    plain = primitive.bind_with_trace

    def bind(trace: Any, args: Sequence[Any], *rest: Any) -> Any:
        if not isinstance(trace, _DIFFERENTIATING) or not _runs(trace):
            return plain(trace, args, *rest)
        instead = hooks.loop(primitive, tuple(map(compat_types.aval_of, args)), rest[-1])
        if instead is None:
            return plain(trace, args, *rest)
        with _set_current_trace(trace):
            return instead(*args)

    return bind


def _runs(trace: Any) -> bool:
    """Whether what is bound under this trace runs now: it is not part of a program, and no
    interpreter of somebody else's looks at it.
    """
    while isinstance(trace, _TRANSFORMING):
        trace = trace.parent_trace
    return isinstance(trace, _core.EvalTrace)


def is_helper(jaxpr: Any) -> bool:
    """Whether a program is one of JAX's own functions, and has no loop: what `jax.numpy` runs op by
    op.
    """
    function = compat_source.library_function(jaxpr)
    return (
        function is not None
        and is_machinery(function[0])
        and compat.primitive_names(jaxpr).isdisjoint(compat.STRUCTURED)
    )
