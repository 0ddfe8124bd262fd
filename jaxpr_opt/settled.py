"""Programs on which a pipeline has nothing more to do in its first phase."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Literal

from jax.extend.core import ClosedJaxpr

Settled = Literal["tidy", "untidy"]
"""A program on which the first phase has nothing to do, or only to tidy up, which alone it never
does.
"""

_settled: dict[int, tuple[weakref.ref[ClosedJaxpr], Hashable, Settled]] = {}


def settle(jaxpr: ClosedJaxpr, pipeline: Hashable, *, tidy: bool) -> None:
    """Remember that a pipeline's first phase has nothing more to do on this very object, but,
    unless it is tidy, to tidy up.
    """
    key = id(jaxpr)
    state: Settled = "tidy" if tidy else "untidy"
    _settled[key] = (weakref.ref(jaxpr, lambda _: _settled.pop(key, None)), pipeline, state)


def settled_by(jaxpr: ClosedJaxpr, pipeline: Hashable) -> Settled | None:
    """What is remembered of this very object and a pipeline."""
    reference, by, state = _settled.get(id(jaxpr), (None, None, None))
    return state if reference is not None and reference() is jaxpr and by == pipeline else None


def is_settled(jaxpr: ClosedJaxpr) -> bool:
    """Whether any pipeline has settled this very object."""
    return id(jaxpr) in _settled
