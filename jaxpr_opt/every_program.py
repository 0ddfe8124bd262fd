"""`everywhere`: the programs that JAX compiles are optimised, in code that nobody edits.

A program goes to the pipeline after `jax.jit` has traced it and before it is compiled, lowered or
differentiated.  So it does not matter who calls `jax.jit`, under which name (`equinox.filter_jit`,
`flax.nnx.jit`, inside a library), or whether that was before: the jitted function is JAX's own.
What JAX runs op by op stays so, but for loops and branches: each is a program.

These are left as they are:

1. a jitted function inside another one: it is part of that program, which is optimised as a whole;
2. functions of JAX itself that have no loop, as most of `jax.numpy`;
3. programs of `optimize`;
4. programs with mutable arrays or types that are no arrays to XLA.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import jax

from jaxpr_opt import settings
from jaxpr_opt.bridge import guard

if TYPE_CHECKING:
    from jaxpr_opt.boundary.program import Program
    from jaxpr_opt.engine.interface import Pass
    from jaxpr_opt.engine.pipeline import Pipeline

Tell = Callable[[Any, Any, float], None]
"""Of a program, what stands for it, and the seconds that took."""

_LOOPS = 512
"""How many loops that run op by op are remembered."""


@contextlib.contextmanager
def everywhere(
    *,
    passes: Sequence[str | Pass[Any]] | None = None,
    skip: Sequence[str] = (),
    reassociate: bool = False,
) -> Iterator[None]:
    """Optimise every program that this thread compiles or differentiates in a block.

    ``with jaxpr_opt.everywhere(): train()`` has the effect of `optimize` on each jitted function,
    in libraries too.  A function that was compiled before is traced again in the block, and what
    was compiled in the block is not used after it.  Like JAX's context managers it acts on one
    thread; ``JAXPR_OPT_EVERYWHERE=1`` acts on the whole process, from the import of `jaxpr_opt` on.
    An inner block replaces the settings of the outer one.

    Args:
      passes: names of passes, or passes, to run instead of the default pipeline.
      skip: names of passes to leave out.
      reassociate: whether sums may be computed in another order (see `optimize`).

    Raises:
      TypeError: `passes` or `skip` is not a sequence of names or passes, or `reassociate` not a
        bool.
      ValueError: a name is not that of a pass.

    Example:
      >>> with jaxpr_opt.everywhere():
      ...     jax.jit(jnp.sin)(0.0).item()
      0.0
    """
    settings.check_reassociate(reassociate, "everywhere")
    if not guard.is_open():
        yield
        return
    from jaxpr_opt.engine import registry

    scope = _scope()(registry.resolve(passes, skip, reassociate=reassociate, caller="everywhere"))
    with _installed(), scope:
        yield


def turn_on(tell: Tell | None = None) -> None:
    """Optimise the programs of all threads from now on, as ``JAXPR_OPT_EVERYWHERE=1`` does.

    `tell` is called with each program that is replaced.
    """
    if not guard.is_open():
        return
    from jaxpr_opt.engine import registry

    _listeners[:] = [tell] if tell is not None else []
    _scope().set_global(registry.resolve())
    _use(1)


def turn_on_if_asked() -> None:
    """`turn_on` if ``JAXPR_OPT_EVERYWHERE=1``."""
    if settings.is_on(os.environ.get("JAXPR_OPT_EVERYWHERE", "")):
        turn_on()


# -- where it is on ------------------------------------------------------------------------------


@functools.cache
def _scope() -> Any:
    """The pipeline of this thread, None outside: JAX knows it, and traces again where it changes.

    JAX forgets what it has compiled when it is made, so that happens on first use.
    """
    return jax.make_user_context(None)


_lock = threading.Lock()
_uses = 0
"""How many blocks there are, in all threads."""


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    _use(1)
    try:
        yield
    finally:
        _use(-1)


def _use(change: int) -> None:
    """Have JAX ask for as long as there is somebody to answer."""
    from jaxpr_opt.bridge import compat_jit

    global _uses
    with _lock:
        before, _uses = _uses, _uses + change
        if not before:
            compat_jit.install(compat_jit.Hooks(_program, _options, _loop))
        elif not _uses:
            compat_jit.uninstall()


def _pipeline() -> Pipeline | None:
    pipeline: Pipeline | None = None if settings.current().disable else _scope().value
    return pipeline


# -- what is asked -------------------------------------------------------------------------------

_made: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
"""For a program what stands for it, by pipeline and settings; None if it stays."""
_listeners: list[Tell] = []
"""Called with each program that is replaced."""


def _program(jaxpr: Any, name: str) -> Any:
    """The stand-in for the program of a jitted function."""
    pipeline = _pipeline()
    if pipeline is None:
        return jaxpr
    known, key = _made.setdefault(jaxpr, {}), (pipeline, settings.current())
    if key not in known:
        started = time.perf_counter()
        known[key] = guard.attempt(lambda: optimized(jaxpr, pipeline, name), lambda: None, name)
        for tell in _listeners if known[key] is not None else ():
            tell(jaxpr, known[key], time.perf_counter() - started)
    made = known[key]
    return jaxpr if made is None else made


def _options(jaxpr: Any) -> dict[str, Any]:
    """The options of XLA for what stands for a program."""
    from jaxpr_opt.boundary import compiling
    from jaxpr_opt.bridge import compat

    ours = compat.open_jaxpr(jaxpr).eqns and _is_optimized(jaxpr)
    return compiling.compiler_options() if ours else {}


def optimized(jaxpr: Any, pipeline: Pipeline, name: str) -> Any:
    """The stand-in for the program of a jitted function; None if it stays as it is."""
    from jaxpr_opt.boundary import rules
    from jaxpr_opt.bridge import compat, compat_jit

    if compat_jit.is_helper(jaxpr) or _is_optimized(jaxpr):
        return None
    own, info = jaxpr.replace(), compat.debug_info(jaxpr)  # `own`: what is kept is not the key
    made = compat.trace(lambda *args: rules.call(own, pipeline, name, args), own.in_avals, info)
    return compat.with_debug_info(made, info)


def _is_optimized(jaxpr: Any) -> bool:
    from jaxpr_opt.bridge import compat
    from jaxpr_opt.ir.importer import OPTIMIZED

    return all(eqn.primitive.name == OPTIMIZED for eqn in compat.open_jaxpr(jaxpr).eqns)


def _loop(
    primitive: Any, avals: tuple[Any, ...], params: dict[str, Any]
) -> Callable[..., Sequence[Any]] | None:
    """The optimised program of a loop that is differentiated op by op."""
    pipeline = _pipeline()
    if pipeline is None:
        return None
    key = tuple(sorted(params.items()))
    return guard.attempt(
        lambda: _loop_program(primitive, avals, key, pipeline, settings.current()), lambda: None
    )


@functools.lru_cache(_LOOPS)
def _loop_program(
    primitive: Any,
    avals: tuple[Any, ...],
    params: tuple[tuple[str, Any], ...],
    pipeline: Pipeline,
    _: settings.Settings,
) -> Program | None:
    from jaxpr_opt.boundary.program import Program
    from jaxpr_opt.bridge import compat, compat_ad

    jaxpr = compat.trace(lambda *args: primitive.bind(*args, **dict(params)), avals)
    if compat_ad.uses_references(jaxpr) or compat.has_high_types(jaxpr):
        return None
    return Program.optimized(jaxpr, pipeline, primitive.name)
