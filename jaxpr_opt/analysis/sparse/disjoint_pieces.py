"""Whether pieces of a chain, or the steps of a loop that adds pieces, have elements in common."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import jax.numpy as jnp

from jaxpr_opt.analysis.sparse.scatter_chains import Chain, Link, Piece
from jaxpr_opt.analysis.windows.access import Extent
from jaxpr_opt.ir.graph import Scan


def is_one_by_one(chain: Chain, dtype: Any) -> bool:
    """Whether the pieces may be added one by one to an array: no element gets two, or the order of
    a sum does not matter.
    """
    pieces = [link for link in chain.links if isinstance(link, Piece)]
    # Condition 2 of accumulate-sparse-cotangents.
    if len(pieces) < len(chain.links):
        return False
    if not jnp.issubdtype(dtype, jnp.inexact):
        return True
    # Condition 2 of accumulate-sparse-cotangents.
    if any(piece.repeats for piece in pieces):
        return False
    # Condition 2 of accumulate-sparse-cotangents.
    return all(apart(a.window, b.window) for a, b in combinations(pieces, 2))


def apart(a: Sequence[Extent], b: Sequence[Extent]) -> bool:
    """Whether two windows never have an element in common."""
    for first, second in zip(a, b, strict=False):
        if first.start is None or second.start is None:
            continue
        distance = second.start - first.start
        # Condition 2 of accumulate-sparse-cotangents.
        if distance.is_constant and not -second.size < distance.offset < first.size:
            return True
    return False


def own_windows(link: Link) -> bool:
    """Whether a loop's windows are known, and each step has a window of its own."""
    if isinstance(link, Piece):
        return False
    return any(
        is_disjoint_between_steps(inner, link.op) or own_windows(inner)
        for inner in link.inner.links
    )


def is_disjoint_between_steps(link: Link, loop: Scan) -> bool:
    """Whether a window is known, and no two steps of a loop touch one element of it."""
    window = link.window if isinstance(link, Piece) else ()
    return bool(window) and any(
        # Condition 2 of accumulate-sparse-cotangents.
        extent.start is not None and abs(extent.start.steps.get(loop, 0)) >= extent.size
        for extent in window
    )
