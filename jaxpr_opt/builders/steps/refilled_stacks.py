"""Fill in the rows of steps that a loop no longer runs, because it stops early.

All these rows are the same.  Where XLA computes a select inside of the stack's reader, it is a
select::

    select(iota < done, buffer, row)

Elsewhere the select would be a second array, also where axes are moved, for which XLA reads a
buffer where it is. Then another loop writes them in place, a block at a time::

    i, buffer = while carry(i=done, buffer) { lt i n } {
      j = min i (n - block)
      rows = select(j + iota < done, buffer[j : j + block], row)
      yield add i block, write buffer[j : j + block] rows
    }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.liveness.fused import fused
from jaxpr_opt.analysis.steps.skipped_rows import SkippedRow
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.bridge.slicing import read_window, write_row, write_window
from jaxpr_opt.builders.steps.skipped_steps import in_skipped_step
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import rearranges


@dataclass(frozen=True, slots=True, eq=False)
class MissingRows:
    """The rows of a buffer that are to be `row`, an array or a number: from `done` on, or, if
    `downwards`, from there to the first.
    """

    buffer: Value
    row: Value
    done: Value
    downwards: bool


def buffer_of_rows(skipped: SkippedRow, aval: Any, before: Op, rw: Rewriter) -> Value:
    """The buffer that rows are written into: the rows of skipped steps, or anything."""
    if skipped.constant is None or not _is_number(skipped, aval):
        return rw.undefined(aval, before=before)
    number = rw.scalar(skipped.constant.value, aval.dtype)
    full = partial(lax.broadcast_in_dim, shape=aval.shape, broadcast_dimensions=())
    return rw.typed(full, aval, number, before=before)


def missing_rows(
    skip: Skip,
    buffer: Value,
    skipped: SkippedRow,
    kept: dict[Value, Value],
    done: Value,
    rw: Rewriter,
) -> MissingRows | None:
    """The rows of a stack that were not run, as skipped steps would have made them; None if the
    buffer has them, or nobody reads them.
    """
    if skipped.is_unspecified or _is_number(skipped, buffer.aval):
        return None
    scan = skip.scan
    if skipped.value is not None:
        row = in_skipped_step(skipped.computed, dict(kept), scan, rw)(skipped.value)
    else:
        assert skipped.constant is not None
        row = rw.scalar(skipped.constant.value, buffer.dtype)
    return MissingRows(buffer, row, done, scan.reverse and skip.kind == "carried")


def refill(left_out: Mapping[Value, MissingRows], scan: Scan, rw: Rewriter) -> None:
    """Replace the stacks of a scan by buffers with the rows that these miss."""
    selects: dict[Value, MissingRows] = {}
    for stack, each in left_out.items():
        if _block(each) == 1:
            rw.replace(stack, _written(each, scan, rw))
            continue
        operands = each.buffer, each.done, each.row
        select = rw.typed(partial(_chosen, each), stack.aval, *operands, before=scan)
        selects[select] = each
        rw.replace(stack, select)
    if not any(_block(each) < each.buffer.shape[0] for each in selects.values()):
        return
    assert scan.region is not None
    inside = fused(scan.region.terminator).inside
    for select, each in selects.items():
        is_array = select not in inside or any(map(rearranges, select.users))
        if is_array and _block(each) < each.buffer.shape[0]:
            rw.replace(select, _written(each, scan, rw))


def _block(missing: MissingRows) -> int:
    """How many rows are written at once."""
    rows = missing.buffer.shape[0]
    return cost_model().rows_at_once(rows, missing.buffer.nbytes)


def _chosen(
    missing: MissingRows,
    rows: jax.Array,
    done: jax.Array,
    row: jax.Array,
    first: jax.Array | None = None,
) -> jax.Array:
    """Rows of the buffer, or those from `first` on, and the row instead of those that it misses."""
    number = lax.broadcasted_iota(np.int32, rows.shape, 0)
    number = number if first is None else lax.add(number, first)
    ran = (lax.gt if missing.downwards else lax.lt)(number, done)
    axes = range(rows.ndim - row.ndim, rows.ndim)
    return lax.select(ran, rows, lax.broadcast_in_dim(row, rows.shape, axes))


def _written(missing: MissingRows, like: Op, rw: Rewriter) -> Value:
    """The buffer with all rows, written in place."""
    buffer, block = missing.buffer, _block(missing)
    length = buffer.shape[0]
    low: Value = missing.done
    high: Value = rw.scalar(length, np.int32)
    if missing.downwards:
        high = rw.insert(lambda d: lax.add(d, np.int32(1)), missing.done, before=like)
        low = rw.scalar(0, np.int32)
    row = missing.row

    def write(rows: jax.Array, i: jax.Array, row: jax.Array, done: jax.Array) -> jax.Array:
        if block == 1:
            axes = range(rows.ndim - 1 - row.ndim, rows.ndim - 1)
            return write_row(rows, lax.broadcast_in_dim(row, rows.shape[1:], axes), i)
        first = lax.min(i, np.int32(length - block))
        starts = [first, *[0] * (rows.ndim - 1)]
        window = read_window(rows, starts, (block, *rows.shape[1:]))
        return write_window(rows, _chosen(missing, window, done, row, first), starts)

    inits = [low, buffer]
    predicate, body = rw.new_region(inits), rw.new_region(inits)
    go_on = rw.insert(lax.lt, predicate.params[0], high, before=predicate.terminator)
    rw.set_outputs(predicate, [go_on])
    (i, rows), end = body.params, body.terminator
    written = rw.typed(write, rows.aval, rows, i, row, missing.done, before=end)
    following = rw.insert(lambda i: lax.add(i, np.int32(block)), i, before=end)
    rw.set_outputs(body, [following, written])
    return rw.new_while(predicate, body, inits, like=like, before=like).results[1]


def _is_number(skipped: SkippedRow, aval: Any) -> bool:
    """Whether the rows of skipped steps are one number, so that a buffer can start with them."""
    return skipped.constant is not None and aval.sharding.mesh.empty
