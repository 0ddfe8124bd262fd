"""What skipped steps multiply by zero, and whether that is finite.

``total + alive * reward`` does not change in a step where `alive` is zero and the reward is finite:
zero times infinity is NaN. So a loop may stop at the last step taken if the rewards of all later
steps are finite. The program finds that out when it runs, from the least and the greatest number of
each array that these steps read (`jaxpr_opt.analysis.values.ranges`). A carry that skipped steps
keep is what the last step left; ranges of other carries go from step to step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.analysis.steps.splats import Known, Splat
from jaxpr_opt.analysis.values.ranges import RANGES, is_ranged
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import source_through
from jaxpr_opt.ir.devices import is_divided, is_manual
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.traits import LAYING


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """What must be finite in skipped steps, and how they make it."""

    values: tuple[Value, ...]
    """The factors, but for numbers."""
    read: Mapping[Value, Value]
    """What a step reads, with what it is, or is a row of: an outer value or a carry; and truth
    values."""
    changing: Mapping[Value, Known]
    """Carries that skipped steps change, before and after one."""
    ops: tuple[tuple[Op, tuple[Known, ...]], ...]
    """What makes factors of these, in order, with operands."""


def factors(skip: Skip) -> Factors | str:
    """What tells whether all factors of zeros are finite, or why nothing does."""
    scan, body, skipped = skip.scan, skip.scan.body, skip.skipped
    streams = {s.param: s.operand for s in scan.streams}
    nexts = {c.param: c.next for c in (*skip.dropped, *(counter for counter, _ in skip.counters))}
    read: dict[Value, Value] = {}
    changing: dict[Value, Known] = {}
    needed: set[Op] = set()
    known = dict.fromkeys(skipped[v] for op in skip.products for v in op.operands)
    # Condition 13 of exit-loop-early.
    if not all(isinstance(each, Value) or np.isfinite(each.value) for each in known):
        return "it multiplies by zero what is not finite"
    values = tuple(each for each in known if isinstance(each, Value))
    pending: list[Known] = [*values]
    while pending:
        value = pending.pop()
        if isinstance(value, Splat) or value in read or value in changing:
            continue
        if value.dtype == bool:
            read[value] = value
            continue
        # Condition 13 of exit-loop-early.
        if not is_ranged(value.dtype):
            return f"it is not known how large {value.label} may be"
        if value in nexts:
            changing[value] = skipped[nexts[value]]
            pending.append(changing[value])
        elif value.owner is body or not body.defines(value):
            read[value] = source_through(streams.get(value, value), _has_same_numbers)
        # Condition 13 of exit-loop-early.
        elif value.op is None or value.op.name not in RANGES:
            return f"it is not known how large {value.label} may be"
        elif value.op not in needed:
            needed.add(value.op)
            pending += [skipped[v] for v in value.op.operands]
    if len(needed) > limits.OPS_OF_A_RANGE:
        return "too much is computed of what may be too large"
    ops = ((op, tuple(skipped[v] for v in op.operands)) for op in body.walk() if op in needed)
    return Factors(values, read, changing, tuple(ops))


def _has_same_numbers(op: Op) -> bool:
    """Whether the result has the numbers of the operand, moved and repeated, and no others."""
    return op.name in LAYING or op.name in ("rev", "transpose")


def why_not_asked(skip: Skip) -> str | None:
    """Why it is not asked whether all factors of zeros are finite."""
    found = factors(skip)
    if isinstance(found, str):
        return found
    # Condition 13 of exit-loop-early.
    if is_manual(skip.scan) or is_divided(skip.scan):
        return "devices may differ in what they multiply by zero"
    if not cost_model().is_worth_ranges(skip.scan, [*found.read.values()]):
        return "telling how large its factors are takes about as long as its steps"
    return None


def steps_for_ranges(scan: Scan, found: Factors) -> int:
    """How many steps must be left for telling how large factors are."""
    return cost_model().steps_for_ranges(scan, [*found.read.values()])
