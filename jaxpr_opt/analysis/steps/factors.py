"""Values that skipped steps multiply by zero, and whether they are finite.

``total + alive * reward`` does not change in a step where `alive` is zero and the reward is finite:
zero times infinity is NaN. So a loop may stop at the last step taken if the rewards of all later
steps are finite. The program finds that out when it runs, from the least and the greatest number of
each array that these steps read (`jaxpr_opt.analysis.values.ranges`). A carry that skipped steps
keep is what the last step left; ranges of other carries go from step to step. A loop in reverse,
whose skipped steps come first, finds it out before it begins.

If skipped steps read nothing but carries that they keep, ``x + go * f(x)``, all of them compute the
same factors: the program computes these once more, and looks whether they are finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxpr_opt.analysis.steps.computed import Computed
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.analysis.steps.splats import Known, Splat
from jaxpr_opt.analysis.values.float_bounds import bounds
from jaxpr_opt.analysis.values.float_rules import Bounds
from jaxpr_opt.analysis.values.ranges import RANGES, asked_for_nan, is_ranged
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
    bounded: Mapping[Value, Bounds]
    """What is finite whatever the arguments are."""
    changing: Mapping[Value, Known]
    """Carries that skipped steps change, before and after one."""
    ops: tuple[tuple[Op, tuple[Known, ...]], ...]
    """What makes factors of these, in order, with operands."""


@dataclass(frozen=True, slots=True, eq=False)
class SameFactors:
    """What must be finite in skipped steps, all of which make the same."""

    values: tuple[Value, ...]
    """The factors, but for numbers."""
    computed: Computed
    """What makes them of carries that skipped steps keep."""


def factors(skip: Skip) -> Factors | SameFactors | str:
    """What tells whether all factors of zeros are finite, or why nothing does."""
    same = _same_factors(skip)
    return same if same is not None and _may_be_repeated(skip.scan) else _factors(skip)


def _may_be_repeated(scan: Scan) -> bool:
    """Whether a loop takes so much longer than one step that it may be computed once more."""
    model = cost_model()
    seconds = scan.length * model.step_seconds(scan.body)
    return not model.is_visible(1, scan.length) and model.is_worth_loops(1, seconds)


def _same_factors(skip: Skip) -> SameFactors | None:
    """The factors if all skipped steps make the same; None if they may differ."""
    known = [skip.skipped[v] for op in skip.products for v in op.operands]
    values = tuple(dict.fromkeys(each for each in known if isinstance(each, Value)))
    computed = skip.computed(values)
    read = [v for v in computed.known.values() if isinstance(v, Value)]
    kept = {c.param for c in skip.kept} - {c.param for c in skip.dropped}
    body = skip.scan.body
    # Condition 13 of exit-loop-early.
    if any(v.region is not body and body.defines(v) for v in values):
        return None
    # Condition 13 of exit-loop-early.
    is_same = all(v in kept for v in read if v.owner is body)
    is_told = all(is_ranged(v.dtype) for v in values)
    are_numbers = all(isinstance(each, Value) or np.isfinite(each.value) for each in known)
    return SameFactors(values, computed) if is_same and is_told and are_numbers else None


def _factors(skip: Skip) -> Factors | str:
    """The factors, and the ranges of what they are made of, or why these do not tell."""
    scan, body, skipped = skip.scan, skip.scan.body, skip.skipped
    streams = {s.param: s.operand for s in scan.streams}
    nexts = {c.param: c.next for c in (*skip.dropped, *(counter for counter, _ in skip.counters))}
    read: dict[Value, Value] = {}
    bounded: dict[Value, Bounds] = {}
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
        if isinstance(value, Splat) or value in read or value in bounded or value in changing:
            continue
        if value.dtype == bool and asked_for_nan(value) is None:
            read[value] = value
            continue
        # Condition 13 of exit-loop-early.
        if value.dtype != bool and not is_ranged(value.dtype):
            return f"it is not known how large {value.label} may be"
        if value in nexts:
            changing[value] = skipped[nexts[value]]
            pending.append(changing[value])
        elif value.owner is body or not body.defines(value):
            read[value] = source_through(streams.get(value, value), _has_same_numbers)
        elif value.op is None or value.op.name not in RANGES:
            # Condition 13 of exit-loop-early.
            if not bounds(value).is_finite:
                return f"it is not known how large {value.label} may be"
            bounded[value] = bounds(value)
        elif value.op not in needed:
            needed.add(value.op)
            pending += [skipped[v] for v in value.op.operands]
    if len(needed) > limits.OPS_OF_A_RANGE:
        return "too much is computed of what may be too large"
    ops = ((op, tuple(skipped[v] for v in op.operands)) for op in body.walk() if op in needed)
    return Factors(values, read, bounded, changing, tuple(ops))


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
    if isinstance(found, SameFactors):
        return None
    if not cost_model().is_worth_ranges(skip.scan, [*found.read.values()]):
        return "telling how large its factors are takes about as long as its steps"
    return None


def steps_for_ranges(scan: Scan, found: Factors) -> int:
    """How many steps must be left for telling how large factors are."""
    return cost_model().steps_for_ranges(scan, [*found.read.values()])
