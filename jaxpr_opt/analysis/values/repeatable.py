"""Cheap ops of a branch that may run before it instead."""

from __future__ import annotations

from jaxpr_opt.analysis.values.rounding import may_differ
from jaxpr_opt.analysis.values.varying import loop_around, varying
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import is_cheap


@remembered
def not_repeatable(value: Value, cond: Op) -> Op | None:
    """An op in `cond` that a value is made by and that costs more than reading its result, or may
    give another one before the cond; None if there is none.
    """
    maker = _maker(value, cond)
    if maker is None:
        return None
    # Condition 2 of drop-dummy-residuals.
    if not is_cheap(maker) or may_differ(maker):
        return maker
    found = (not_repeatable(v, cond) for v in maker.operands)
    return next((op for op in found if op is not None), None)


@remembered
def changing_source(value: Value, cond: Op) -> Value | None:
    """A value from outside of `cond`, of those that a value is made of, that each step of the loop
    around it computes anew; None if there is none.
    """
    maker = _maker(value, cond)
    if maker is None:
        return varying([value], loop_around(cond))
    found = (changing_source(v, cond) for v in maker.operands)
    return next((v for v in found if v is not None), None)


def _maker(value: Value, cond: Op) -> Op | None:
    """The op that makes a value, if it is in a branch."""
    maker = value.op
    is_inside = maker is not None and any(r.contains(maker.region) for r in cond.regions)
    return maker if is_inside else None
