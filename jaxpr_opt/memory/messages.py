"""The warning that no program meets a memory budget."""

from __future__ import annotations

import warnings

from jaxpr_opt import settings
from jaxpr_opt.bridge.dtypes import type_text
from jaxpr_opt.frames import frame_text
from jaxpr_opt.insight.timeline import Live, timeline
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.ir.places import user_frame
from jaxpr_opt.memory.budget import Budget
from jaxpr_opt.memory.planner import Plan
from jaxpr_opt.sizes import binary_text


class BudgetError(ValueError):
    """A memory budget that no program meets."""


def tell_unmet(plan: Plan, budget: Budget, graph: Graph) -> None:
    """Warn that the smallest program is larger than the budget allows; in strict mode, raise."""
    message = unmet_text(plan, budget, graph)
    if settings.current().strict:
        raise BudgetError(message)
    warnings.warn(f"jaxpr_opt: {message}", stacklevel=2)


def unmet_text(plan: Plan, budget: Budget, graph: Graph) -> str:
    """How small the program has become, and what takes most of its memory at the peak."""
    without, least = (binary_text(each.nbytes) for each in (plan.frontier[0], plan.chosen))
    peak = timeline(graph).peak
    largest = "; ".join(_described(live) for live in peak.largest[:3])
    return (
        f"`{plan.name}` takes {least} of temporary memory at least ({without} without a budget), "
        f"more than memory={budget.written!r} allows; at its peak: {largest}"
    )


def _described(live: Live) -> str:
    """A value, what it takes, and the line that makes it."""
    frame = None if live.value.op is None else user_frame(live.value.op)
    place = "" if frame is None else f" ({frame_text(frame)})"
    return f"{type_text(live.value.aval)} {binary_text(live.bytes)}{place}"
