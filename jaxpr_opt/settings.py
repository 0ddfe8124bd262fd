"""Switches for debugging, read when they are used.

=====================  ================================================================
``JAXPR_OPT_DISABLE``  `optimize` is `jax.jit`
``JAXPR_OPT_STRICT``   a failing pass raises; otherwise it warns and the program stays as it was
``JAXPR_OPT_CHECK``    compiled programs also evaluate what they were made from, and compare
``JAXPR_OPT_VERIFY``   the graph is verified after every pass
=====================  ================================================================

``JAXPR_OPT_EVERYWHERE`` is read once, when `jaxpr_opt` is imported (see `jaxpr_opt.everywhere`).

A switch is on unless it is unset, empty, ``0``, ``false``, ``no`` or ``off``.  Tests set them with
`override`.  Programs that JAX has already traced or compiled stay as they are: the switches act
where `optimize` runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

_OFF = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Settings:
    """The value of every switch at one moment."""

    disable: bool = False
    """`optimize` is `jax.jit`."""
    strict: bool = False
    """A failing pass raises instead of warning."""
    check: bool = False
    """Compiled programs compare themselves with what they were made from."""
    verify: bool = False
    """The graph is verified after every pass."""


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


@contextlib.contextmanager
def override(**switches: bool) -> Iterator[Settings]:
    """Set switches for the duration of a block: ``with settings.override(strict=True): ...``."""
    if unknown := sorted(switches.keys() - _VARIABLES.keys()):
        raise TypeError(
            f"unknown setting {unknown[0]!r}: expected one of {', '.join(sorted(_VARIABLES))}"
        )
    token = _overridden.set({**(_overridden.get() or {}), **switches})
    try:
        yield current()
    finally:
        _overridden.reset(token)
