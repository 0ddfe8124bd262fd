"""JAX's filter of tracebacks, which leaves out our frames as well as its own.

What a user's function raises ends in the user's lines. ``JAX_TRACEBACK_FILTERING=off`` shows all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax

try:
    from jax._src import traceback_util as _tracebacks
except ImportError:  # a JAX we do not know: tracebacks are longer, and that is all
    _tracebacks = None  # type: ignore[assignment]
_filtered: Any = getattr(_tracebacks, "filter_traceback", None)
_exclude: Any = getattr(_tracebacks, "register_exclusion", None)

P = ParamSpec("P")
R = TypeVar("R")


if _exclude is not None:
    _exclude(str(Path(__file__).parent.parent))


def without_ours(error: Exception) -> None:
    """Leave frames of JAX and of ours out of an exception's traceback, if that is switched on."""
    config: Any = jax.config
    if _filtered is not None and getattr(config, "jax_traceback_filtering", "off") != "off":
        error.__traceback__ = _filtered(error.__traceback__)


def boundary(fun: Callable[P, R]) -> Callable[P, R]:
    """The function; of what it raises, frames of JAX and of ours are left out."""

    @functools.wraps(fun)
    def bounded(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        try:
            return fun(*args, **kwargs)
        except Exception as error:
            without_ours(error)
            raise

    return bounded
