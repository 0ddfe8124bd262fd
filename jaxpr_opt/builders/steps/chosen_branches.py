"""Turn what a step computes in some cases of a choice into branches."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.residuals.chosen_work import Division, Layer
from jaxpr_opt.analysis.steps.choices import Choice, row_of
from jaxpr_opt.analysis.steps.computed import Computed
from jaxpr_opt.builders.residual_transfer import streamed
from jaxpr_opt.builders.steps.any_row import any_row
from jaxpr_opt.builders.steps.skipped_steps import in_skipped_step
from jaxpr_opt.ir.graph import Region, Value
from jaxpr_opt.ir.rewriter import Rewriter


def into_branches(found: Division, rw: Rewriter) -> None:
    """Compute each layer in a branch of its own; others read what it yields."""
    body, choice = found.choice.scan.body, found.choice
    asked = _asked(choice, rw)
    gone = set(found.ops)
    now: dict[Value, Value] = {}
    for layer in found.layers:
        end = layer.last.next
        assert end is not None
        branches = [_branch(layer, each, now, rw) for each in found.computed]
        selector = rw.insert(partial(_selector, choice), asked, before=end)
        cond = rw.new_cond(selector, branches, like=layer.ops[-1], before=end)
        now |= dict(zip(layer.results, cond.results, strict=True))
        for old, new in zip(layer.results, cond.results, strict=True):
            rw.replace(old, new, lambda use: body.ancestor(use.op) not in gone)
        for op in layer.later:
            rw.move(op, end)
    for op in sorted(gone, key=body.order, reverse=True):
        rw.erase(op)


def _asked(choice: Choice, rw: Rewriter) -> Value:
    """What a step asks: of another loop, a row of the same array."""
    if not choice.is_borrowed:
        return choice.asked
    array = row_of(choice.asked)
    assert array is not None
    return streamed(array, choice.scan, rw)


def _selector(choice: Choice, asked: jax.Array) -> jax.Array:
    """The number of the case, or the truth value that tells it."""
    if choice.numbers and len(choice.cases) == 2:
        return lax.eq(asked, lax.full_like(asked, choice.numbers[1]))
    if choice.numbers:
        return _place(choice, asked)
    if choice.number is None:
        return asked
    if asked.dtype != bool:
        return any_row(lax.eq(asked, lax.full_like(asked, choice.number)), True)
    return any_row(asked, bool(choice.number))


def _place(choice: Choice, asked: jax.Array) -> jax.Array:
    """The place of an integer among the numbers; one more if it is none of them."""
    if choice.numbers == (*range(len(choice.cases)),):
        return lax.convert_element_type(asked, np.int32)
    place: jax.Array = lax.full_like(asked, len(choice.cases) - 1, np.int32)
    for each, number in enumerate(choice.numbers):
        is_it = lax.eq(asked, lax.full_like(asked, number))
        place = lax.select(is_it, lax.full_like(place, each), place)
    return place


def _branch(layer: Layer, case: Computed, now: dict[Value, Value], rw: Rewriter) -> Region:
    """The branch of a case: what it computes of a layer, and yields of its results."""
    branch, needed = rw.new_region(), set(case.ops)
    end = branch.terminator
    ops = tuple(op for op in layer.ops if op in needed)
    result = in_skipped_step(Computed(ops, case.known), dict(now), end, rw)
    outputs = [
        result(v) if v in case.known else rw.undefined(v.aval, before=end) for v in layer.results
    ]
    rw.set_outputs(branch, outputs)
    return branch
