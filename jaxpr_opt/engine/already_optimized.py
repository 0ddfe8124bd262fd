"""Programs that a pipeline has already optimised, so that its first phase has nothing to do."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Literal, NamedTuple

from jax.extend.core import ClosedJaxpr

State = Literal["cleaned", "uncleaned"]
"""A program on which the first phase has nothing to do, or only clean-up, which alone it never
does.
"""


class _Known(NamedTuple):
    """What is remembered of a program."""

    jaxpr: weakref.ref[ClosedJaxpr]
    by: Hashable
    state: State
    source: ClosedJaxpr | None


_known: dict[int, _Known] = {}


def mark_optimized(
    jaxpr: ClosedJaxpr, by: Hashable, *, cleaned: bool, source: ClosedJaxpr | None = None
) -> None:
    """Remember that a pipeline's first phase has nothing more to do on this very object, or
    only clean-up if it is not `cleaned`; `by`: the pipeline, and for what it ran; `source`: what it
    was made from, if that will be needed.
    """
    key = id(jaxpr)
    state: State = "cleaned" if cleaned else "uncleaned"
    reference = weakref.ref(jaxpr, lambda _: _known.pop(key, None))
    _known[key] = _Known(reference, by, state, source)


def optimized_state(jaxpr: ClosedJaxpr, by: Hashable) -> State | None:
    """The state that is remembered of this very object and a pipeline."""
    known = _of(jaxpr, by)
    return None if known is None else known.state


def source_of(jaxpr: ClosedJaxpr, by: Hashable) -> ClosedJaxpr | None:
    """The object from which a pipeline made this very one, if that was to be remembered."""
    known = _of(jaxpr, by)
    return None if known is None else known.source


def _of(jaxpr: ClosedJaxpr, by: Hashable) -> _Known | None:
    known = _known.get(id(jaxpr))
    return known if known and known.jaxpr() is jaxpr and known.by == by else None
