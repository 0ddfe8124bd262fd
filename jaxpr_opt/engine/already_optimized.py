"""Programs that a pipeline has already optimised: its first phase finds nothing more to do."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Literal, NamedTuple

from jax.extend.core import ClosedJaxpr

Settled = Literal["tidy", "untidy"]
"""A program on which the first phase has nothing to do, or only to tidy up, which alone it never
does.
"""


class _Known(NamedTuple):
    """What is remembered of a program."""

    jaxpr: weakref.ref[ClosedJaxpr]
    by: Hashable
    state: Settled
    source: ClosedJaxpr | None


_known: dict[int, _Known] = {}


def settle(
    jaxpr: ClosedJaxpr, by: Hashable, *, tidy: bool, source: ClosedJaxpr | None = None
) -> None:
    """Remember that a pipeline's first phase has nothing more to do on this very object, but,
    unless it is tidy, to tidy up; `by`: the pipeline, and for what it ran; `source`: what it was
    made from, if that will be needed.
    """
    key = id(jaxpr)
    state: Settled = "tidy" if tidy else "untidy"
    reference = weakref.ref(jaxpr, lambda _: _known.pop(key, None))
    _known[key] = _Known(reference, by, state, source)


def settled_by(jaxpr: ClosedJaxpr, by: Hashable) -> Settled | None:
    """What is remembered of this very object and a pipeline."""
    known = _of(jaxpr, by)
    return None if known is None else known.state


def source_of(jaxpr: ClosedJaxpr, by: Hashable) -> ClosedJaxpr | None:
    """What a pipeline made this very object from, if that was to be remembered."""
    known = _of(jaxpr, by)
    return None if known is None else known.source


def _of(jaxpr: ClosedJaxpr, by: Hashable) -> _Known | None:
    known = _known.get(id(jaxpr))
    return known if known and known.jaxpr() is jaxpr and known.by == by else None
