"""How many steps of a loop are taken: counted as it runs, or found before it runs."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.steps.first_taken import rows_below
from jaxpr_opt.analysis.steps.masks import Prefix
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.steps.any_row import any_true
from jaxpr_opt.builders.steps.skipped_steps import is_taken
from jaxpr_opt.builders.steps.step_rows import row_at
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def steps_taken(skip: Skip, rw: Rewriter) -> Value:
    """The number of rows among which are all steps that are taken, of a loop that runs forward."""
    return count_taken(skip, rw) if skip.kind == "carried" else last_step(skip, rw)


def count_taken(skip: Skip, rw: Rewriter) -> Value:
    """Give the scan a carry that counts the steps it takes."""
    scan = skip.scan
    carry = rw.carry(scan, rw.scalar(0, np.int32), "taken")

    def count(k: jax.Array, p: jax.Array) -> jax.Array:
        return lax.add(k, lax.convert_element_type(is_taken(skip, p), k.dtype))

    end = scan.body.terminator
    rw.set_last_next(scan, rw.insert(count, carry.param, skip.predicate, before=end))
    return carry.result


def last_step(skip: Skip, rw: Rewriter) -> Value:
    """The number of rows among which are all steps that are taken."""
    scan, n = skip.scan, skip.scan.length
    if skip.kind == "carried":
        return rw.scalar(n, np.int32)
    first = rows_below(skip)
    if first is not None:
        return rw.insert(partial(_rows_below, first, n), first.bound, before=scan)
    asked = skip.asked
    streams = (s for s in scan.streams if s.param in asked)
    rows = {s.param: _view_of_its_own(s.operand, scan, rw) for s in streams}
    for carry, step in skip.counters:
        rows[carry.param] = counted_on(carry.init, step, None, scan, rw)
    masks = rw.vectorize(skip.slice, skip.predicate, rows, length=n, before=scan)

    def last(p: jax.Array) -> jax.Array:
        taken = lax.reduce_or(lax.reshape(are_taken(skip, p), (n, p.size // n)), (1,))
        after = lax.add(np.int32(1), lax.iota(np.int32, n))
        return lax.reduce_max(lax.select(taken, after, lax.broadcast(np.int32(0), (n,))), (0,))

    return rw.insert(last, masks, before=scan)


def last_step_found(skip: Skip, rw: Rewriter) -> Value:
    """The same, by a loop that goes on as long as the row before is of no step that is taken."""
    scan = skip.scan
    inits = [rw.scalar(scan.length, np.int32)]
    predicate, body = rw.new_region(inits), rw.new_region(inits)
    (rows,), end = predicate.params, predicate.terminator
    row = rw.insert(_before, rows, before=end)
    asked = skip.asked
    known = {s.param: row_at(s, row, scan, end, rw) for s in scan.streams if s.param in asked}
    taken = predicate_of(skip, known, end, rw)

    def is_skipped(rows: jax.Array, taken: jax.Array) -> jax.Array:
        left = lax.gt(rows, np.int32(0))
        return lax.bitwise_and(left, lax.bitwise_not(any_true(are_taken(skip, taken))))

    rw.set_outputs(predicate, [rw.insert(is_skipped, rows, taken, before=end)])
    before = rw.insert(_before, body.params[0], before=body.terminator)
    rw.set_outputs(body, [before])
    return rw.new_while(predicate, body, inits, like=scan, before=scan).results[0]


def _before(row: jax.Array) -> jax.Array:
    return lax.sub(row, np.int32(1))


def _rows_below(mask: Prefix, n: int, bound: jax.Array) -> jax.Array:
    """How many rows `i` of `n` there are with ``a * i + offset < bound``, for any bound."""
    bound = lax.reduce_max(bound, range(bound.ndim)) if bound.ndim else bound
    (a,), (_, top) = mask.coefficients, dtypes.limits(bound.dtype)
    limit = min(a * (n - 1) + mask.offset + 1, top)
    clipped = lax.clamp(lax.full_like(bound, 0), bound, lax.full_like(bound, limit))
    below = lax.convert_element_type(clipped, np.int32)
    if a > 1 or mask.offset:
        past = lax.add(lax.sub(below, np.int32(mask.offset)), np.int32(a - 1))
        below = lax.div(lax.max(past, np.int32(0)), np.int32(a))
    return below


def _view_of_its_own(array: Value, scan: Scan, rw: Rewriter) -> Value:
    """An array; where it is a view, another one, so that the loop can read what the view is of."""
    op = array.op
    if op is None or op.name not in ("rev", "slice", "transpose") or op.region is not scan.region:
        return array
    made: dict[Value, Value] = {}
    rw.clone([op], made, scan)
    return made[array]


def are_taken(skip: Skip, predicate: jax.Array) -> jax.Array:
    """Whether each row takes the step."""
    return lax.eq(predicate, np.bool_(skip.taken_when))


def predicate_of(skip: Skip, mapping: dict[Value, Value], before: Op, rw: Rewriter) -> Value:
    """The predicate of a step with such parameters, computed again."""
    rw.clone(skip.slice, mapping, before)
    return mapping.get(skip.predicate, skip.predicate)


def counted_on(init: Value, step: Value, after: int | None, scan: Scan, rw: Rewriter) -> Value:
    """A counter after that many steps; without `after`, its value in each row."""
    n = scan.length

    def count(i: jax.Array, s: jax.Array) -> Any:
        if after is not None:
            return lax.add(i, lax.mul(s, dtypes.wrapped(i.dtype, after)))
        rows = lax.iota(np.int32, n)
        steps = lax.sub(np.int32(n - 1), rows) if scan.reverse else rows
        return lax.add(i, lax.mul(s, lax.convert_element_type(steps, i.dtype)))

    return rw.typed(count, init.aval if after is not None else None, init, step, before=scan)
