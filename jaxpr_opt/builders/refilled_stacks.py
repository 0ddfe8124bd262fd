"""The stacks of a scan of which a `while` ran some steps: the others stack what they would have."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.steps.skipped_rows import SkippedRow
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.bridge.slicing import write_row
from jaxpr_opt.builders.skipped_steps import in_skipped_step
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def buffer_of_rows(skipped: SkippedRow, aval: Any, before: Op, rw: Rewriter) -> Value:
    """What rows are written into: the rows of skipped steps, or anything."""
    if skipped.constant is None or not _is_number(skipped, aval):
        return rw.undefined(aval, before=before)
    return _full(rw.scalar(skipped.constant.value, aval.dtype), aval, before, rw)


def refilled(
    skip: Skip,
    buffer: Value,
    skipped: SkippedRow,
    kept: dict[Value, Value],
    done: Value,
    rw: Rewriter,
) -> Value:
    """The stack: rows that were run, and the others as skipped steps would have made them."""
    if skipped.is_unspecified or _is_number(skipped, buffer.aval):
        return buffer
    scan = skip.scan
    if skipped.value is not None:
        value = in_skipped_step(skipped.computed, dict(kept), scan, rw)(skipped.value)
    else:
        assert skipped.constant is not None
        value = rw.scalar(skipped.constant.value, buffer.dtype)

    downwards = scan.reverse and skip.kind == "carried"
    if cost_model().is_faster_by_rows(scan.length, buffer.nbytes):
        bounds: tuple[Value, Value] = done, rw.scalar(scan.length, np.int32)
        if downwards:
            end = rw.insert(lambda d: lax.add(d, np.int32(1)), done, before=scan)
            bounds = rw.scalar(0, np.int32), end
        return _written_again(scan, buffer, value, *bounds, rw)

    def fill(rows: jax.Array, d: jax.Array, row: jax.Array) -> jax.Array:
        number = lax.broadcasted_iota(np.int32, rows.shape, 0)
        ran = (lax.gt if downwards else lax.lt)(number, d)
        axes = range(rows.ndim - row.ndim, rows.ndim)
        return lax.select(ran, rows, lax.broadcast_in_dim(row, rows.shape, axes))

    return rw.typed(fill, buffer.aval, buffer, done, value, before=scan)


def _written_again(
    scan: Scan, buffer: Value, row: Value, low: Value, high: Value, rw: Rewriter
) -> Value:
    """The buffer with a row at all places from `low` to `high`; no other place is copied."""
    aval = rw.row_aval(buffer)
    if row.shape != aval.shape:  # one number
        row = _full(row, aval, scan, rw)
    inits = [low, buffer]
    predicate, body = rw.new_region(inits), rw.new_region(inits)
    go_on = rw.insert(lax.lt, predicate.params[0], high, before=predicate.terminator)
    rw.set_outputs(predicate, [go_on])
    (i, rows), end = body.params, body.terminator
    written = rw.typed(write_row, rows.aval, rows, row, i, before=end)
    following = rw.insert(lambda i: lax.add(i, np.int32(1)), i, before=end)
    rw.set_outputs(body, [following, written])
    return rw.new_while(predicate, body, inits, like=scan, before=scan).results[1]


def _is_number(skipped: SkippedRow, aval: Any) -> bool:
    """Whether the rows of skipped steps are one number, so that a buffer can start with them."""
    return skipped.constant is not None and aval.sharding.mesh.empty


def _full(number: Value, aval: Any, before: Op, rw: Rewriter) -> Value:
    """An array of which every element is a number."""
    full = partial(lax.broadcast_in_dim, shape=aval.shape, broadcast_dimensions=())
    return rw.typed(full, aval, number, before=before)
