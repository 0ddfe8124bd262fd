"""Switches for debugging, read when they are used.

=====================  ====================================================================
``JAXPR_OPT_DISABLE``  `optimize` behaves as `jax.jit`
``JAXPR_OPT_STRICT``   a failing pass raises; otherwise it warns, and the program runs without it
``JAXPR_OPT_CHECK``    compiled programs also evaluate the original program, and compare
``JAXPR_OPT_VERIFY``   the graph is verified after every pass
``JAXPR_OPT_LOG``      stderr gets a line for each program: the passes that changed it, the time
=====================  ====================================================================

``JAXPR_OPT_MEMORY`` is the memory budget of programs that are optimised without one (see
`jaxpr_opt.optimize`); ``JAXPR_OPT_REASSOCIATE`` lets all compute sums in another order.
``JAXPR_OPT_EVERYWHERE`` is read once, when `jaxpr_opt` is imported (see
`jaxpr_opt.everywhere`).

A switch is on unless it is unset, empty, ``0``, ``false``, ``no`` or ``off``.  Tests set them with
`override`.  The switches act when `optimize` runs: programs that JAX has already traced or compiled
do not change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from jaxpr_opt.errors import nearest

_OFF = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Settings:
    """The value of every switch at one moment."""

    disable: bool = False
    """`optimize` behaves as `jax.jit`."""
    strict: bool = False
    """A failing pass raises instead of warning."""
    check: bool = False
    """Compiled programs compare themselves with the original program."""
    verify: bool = False
    """The graph is verified after every pass."""
    log: bool = False
    """Each program logs a line on stderr: the passes that changed it."""


_VARIABLES = {
    field.name: f"JAXPR_OPT_{field.name.upper()}" for field in dataclasses.fields(Settings)
}
"""The environment's name of each."""

_overridden: ContextVar[dict[str, bool] | None] = ContextVar("jaxpr_opt_settings", default=None)


def current() -> Settings:
    """The switches as they are now: `override` first, then the environment."""
    read = {name: is_on(os.environ.get(variable, "")) for name, variable in _VARIABLES.items()}
    return Settings(**{**read, **(_overridden.get() or {})})


def is_on(value: str) -> bool:
    """Whether a switch of the environment with this value is on."""
    return value.strip().lower() not in _OFF


MEMORY = "JAXPR_OPT_MEMORY"
"""The memory budget of programs that are optimised without one."""

REASSOCIATE = "JAXPR_OPT_REASSOCIATE"
"""Whether all programs may compute sums in another order."""

KNOWN = (*_VARIABLES.values(), "JAXPR_OPT_EVERYWHERE", MEMORY, REASSOCIATE)
"""Every variable of the environment that is read."""


def check_reassociate(given: object, who: str) -> None:
    """Raise `TypeError` for what is neither True nor False."""
    if not isinstance(given, bool):
        raise TypeError(f"{who}: reassociate={given!r}: expected True or False")


def check_environment() -> None:
    """Warn of unknown variables that begin with JAXPR_OPT."""
    for variable in os.environ:
        if variable.startswith("JAXPR_OPT") and variable not in KNOWN:
            hint = nearest(variable, KNOWN)
            warnings.warn(f"jaxpr_opt: {variable} is not read{hint}", stacklevel=3)


@contextlib.contextmanager
def override(**switches: bool) -> Iterator[Settings]:
    """Set switches for the duration of a block: ``with settings.override(strict=True): ...``."""
    if unknown := sorted(switches.keys() - _VARIABLES.keys()):
        raise TypeError(f"unknown setting {unknown[0]!r}{nearest(unknown[0], sorted(_VARIABLES))}")
    token = _overridden.set({**(_overridden.get() or {}), **switches})
    try:
        yield current()
    finally:
        _overridden.reset(token)
