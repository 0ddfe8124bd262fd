"""The branches of a cond, one after the other, each as a loop of at most one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
from jax import lax

from jaxpr_opt.analysis.values.constants import is_undefined, uniform
from jaxpr_opt.builders.in_place.at_most_once import at_most_once
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Region, Value
from jaxpr_opt.ir.rewriter import Rewriter


def in_turn(cond: Cond, arrays: Mapping[Outcome, Value], rw: Rewriter) -> None:
    """Replace a cond by a loop for each of its branches; those that compute nothing begin.

    XLA copies the arrays of a branch, and updates those of a loop in place.
    """
    outcomes = cond.outcomes
    idle = next((i for i in range(len(cond.branches)) if _is_idle(outcomes, i, cond)), None)
    state = [_begun(each, arrays.get(each), idle, cond, rw) for each in outcomes]
    buffers = [arrays.get(each) for each in outcomes]
    for number, branch in enumerate(cond.branches):
        if number == idle:
            continue
        taken = rw.insert(_taken(number, len(cond.branches)), cond.selector, before=cond)
        moved = partial(_moved, branch, buffers, rw)
        state = at_most_once(taken, state, moved, cond, cond, rw)
    for outcome, made in zip(outcomes, state, strict=True):
        rw.replace(outcome.result, made)
    rw.erase(cond)


def _moved(
    branch: Region, arrays: Sequence[Value | None], rw: Rewriter, old: Sequence[Value], before: Op
) -> Sequence[Value]:
    """What a branch makes where it has the arrays as they are now; its ops are moved there."""
    region, values = before.region, branch.outputs
    assert region is not None
    for op in [op for op in branch.ops if not op.is_terminator]:
        rw.move(op, before)
    new = {a: p for a, p in zip(arrays, old, strict=True) if a is not None}
    for array, param in new.items():
        rw.replace(array, param, lambda use: region.contains(use.op.region))
    return [new.get(value, value) for value in values]


def _is_idle(outcomes: Sequence[Outcome], number: int, cond: Cond) -> bool:
    """Whether a branch hands on what it is given, and numbers."""
    values = (outcome.values[number] for outcome in outcomes)
    return all(not cond.defines(v) or is_undefined(v) or uniform(v) is not None for v in values)


def _begun(
    outcome: Outcome, array: Value | None, idle: int | None, cond: Cond, rw: Rewriter
) -> Value:
    """What a result is before any branch has run."""
    aval = outcome.result.aval
    if array is not None:
        return array
    value = None if idle is None else outcome.values[idle]
    if value is None or is_undefined(value):
        return rw.undefined(aval, before=cond)
    if (number := uniform(value)) is not None and cond.defines(value):
        return rw.full(number, aval, before=cond)
    return value if value.aval == aval else rw.typed(lambda x: x, aval, value, before=cond)


def _taken(number: int, count: int) -> Callable[[jax.Array], jax.Array]:
    """Whether a selector takes a branch, of so many; one out of range takes the last."""

    def of(selector: jax.Array) -> jax.Array:
        if selector.dtype == bool:
            return selector if number else lax.bitwise_not(selector)
        if number < count - 1:
            return lax.eq(selector, lax.full_like(selector, number))
        low, high = (lax.full_like(selector, n) for n in (0, count - 1))
        return lax.bitwise_or(lax.lt(selector, low), lax.ge(selector, high))

    return of
