"""What programs say: callbacks, whose calls are written down."""

from __future__ import annotations

import random
from typing import Any

import jax
import numpy as np

from fuzz.mutations.places import is_plain, ops, visible
from jaxpr_opt.ir.graph import Graph, Op, While
from jaxpr_opt.ir.rewriter import Rewriter

LOG: list[float] = []
"""What ordered callbacks have said."""

UNORDERED: list[float] = []
"""What the others have said."""


def forget() -> None:
    """Begin anew."""
    LOG.clear()
    UNORDERED.clear()


def said() -> list[float]:
    """All that was said: in order where order counts."""
    return [float(len(LOG)), *LOG, *np.sort(UNORDERED)] if LOG or UNORDERED else []


def mix() -> None:
    """Forget in which order all of it was said."""
    UNORDERED.extend(LOG)
    LOG.clear()


def heard(x: Any) -> None:
    """Write down a number; the order counts."""
    LOG.append(float(np.asarray(x).real))


def overheard(x: Any) -> None:
    """Write down a number; the order does not count."""
    UNORDERED.append(float(np.asarray(x).real))


def say(graph: Graph, rw: Rewriter, rng: random.Random) -> bool:
    """Print a scalar, in order or not."""
    for op in ops(graph, rng):
        numbers = [v for v in visible(op) if is_plain(v) and v.shape == ()]
        if not numbers or _in_predicate(op) or op.region is None:
            continue
        value, is_ordered = rng.choice(numbers), rng.random() < 0.6

        def print_it(x: Any, is_ordered: bool = is_ordered) -> tuple[()]:
            jax.debug.callback(heard if is_ordered else overheard, x, ordered=is_ordered)
            return ()

        rw.insert_many(print_it, value, before=op)
        _spread_effects(op)
        return True
    return False


def _in_predicate(op: Op) -> bool:
    """Whether an op is in what decides whether a loop goes on."""
    region = op.region
    while region is not None and isinstance(region.owner, Op):
        if isinstance(region.owner, While) and region is region.owner.predicate:
            return True
        region = region.owner.region
    return False


def _spread_effects(op: Op) -> None:
    """Effects of an op are effects of those around it."""
    assert op.region is not None and op.prev is not None
    found = frozenset(e for each in op.region.ops for e in each.effects)
    around = op.parent
    while around is not None:
        around.effects |= found
        around = around.parent
