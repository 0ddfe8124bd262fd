"""JAX's private parts that `jaxpr-opt run` needs: what is compiled, from what, and how long it
takes.

Only what is lowered passes here.  Calls of what is compiled take JAX's own fast path.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax._src import traceback_util as _traceback_util

from jaxpr_opt.bridge import guard
from jaxpr_opt.bridge.compat_jit import ways

_traceback_util.register_exclusion(__file__)


class Lowering(NamedTuple):
    """A program as JAX lowers it, on its way to be compiled."""

    name: str
    jaxpr: Any
    again: Callable[[Any], Any]
    """Lowers a program of the same type as JAX lowers this one; what it returns has `compile`."""
    args: Sequence[Any]
    """The arguments of the call; empty where there is none (`jitted.lower`)."""
    donated: Sequence[bool]
    trace_seconds: float
    """Of tracing it; 0 where it was traced before."""


class Watcher(NamedTuple):
    """Called with what JAX compiles."""

    lowering: Callable[[Lowering], Any]
    """Of a program that is about to be lowered: what to call it afterwards, None to forget it."""
    compiled: Callable[[Any, Any, float], None]
    """Of what `lowering` returned, the executable, and the seconds of lowering and compiling."""


_calls = threading.local()
"""In each thread the arguments of the innermost call of a jitted function, and times of tracing."""


def watch(watcher: Watcher) -> None:
    """Tell somebody of all that JAX compiles from now on; what is compiled already runs as fast."""
    plain_run, plain_lower = ways.run, ways.lower
    if plain_run is None or plain_lower is None:
        guard.unknown("jit does not say where it compiles a program")
        return

    @functools.wraps(plain_run)
    def run(found: Any, *rest: Any) -> Any:
        outer, _calls.args = getattr(_calls, "args", ()), rest[0]
        try:
            return plain_run(found, *rest)
        finally:
            _calls.args = outer

    @functools.wraps(plain_lower)
    def lower(args: Any, *, jaxpr: Any, name: str, **params: Any) -> Any:
        again = functools.partial(_lowered, plain_lower, args, name, params)
        given = getattr(_calls, "args", ())
        seconds = _traced_in().pop(name, 0.0)
        lowering = Lowering(name, jaxpr, again, given, params["donated_invars"], seconds)
        known = guard.attempt(lambda: watcher.lowering(lowering), lambda: None)
        started = time.perf_counter()
        made = plain_lower(args, jaxpr=jaxpr, name=name, **params)
        if known is not None and "compile" not in vars(made):
            made.compile = _timed(made, known, watcher, time.perf_counter() - started)
        return made

    ways.run, ways.lower = run, lower
    if not ways.asks:
        ways.set(run, lower)
    jax.monitoring.register_event_duration_secs_listener(_note_trace)


def _lowered(lower: Any, args: Any, name: str, params: dict[str, Any], jaxpr: Any) -> Any:
    return lower(args, jaxpr=jaxpr, name=name, **params)


def _timed(made: Any, known: Any, watcher: Watcher, lowering: float) -> Callable[..., Any]:
    """The method `compile` of a lowered program, that tells when it was first called."""
    compile_ = made.compile

    def timed(*args: Any, **kwargs: Any) -> Any:
        vars(made).pop("compile", None)
        started = time.perf_counter()
        executable = compile_(*args, **kwargs)
        seconds = lowering + time.perf_counter() - started
        guard.attempt(lambda: watcher.compiled(known, executable, seconds), lambda: None)
        return executable

    return timed


def _traced_in() -> dict[str, float]:
    """By name, the seconds it took to trace a function, in this thread."""
    if not hasattr(_calls, "traced"):
        _calls.traced = {}
    return _calls.traced  # type: ignore[no-any-return]


def _note_trace(event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event.endswith("/jaxpr_trace_duration") and "fun_name" in kwargs:
        _traced_in()[str(kwargs["fun_name"])] = duration_secs


def function_of(made: Any) -> Callable[..., Any]:
    """A lowered program, compiled, as a function of its arguments."""
    executable = made.compile()
    constants = executable.shard_const_args(made.const_args)
    return lambda *args: executable.unsafe_call(*constants, *args)


def temporary_bytes(executable: Any) -> int | None:
    """The temporary memory of a compiled program; None where the backend does not tell."""
    memory = executable.memory_analysis()
    return None if memory is None else int(memory.temp_size_in_bytes)
