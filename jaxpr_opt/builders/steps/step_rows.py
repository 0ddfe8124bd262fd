"""The row that a stream hands to a step, read where it is."""

from __future__ import annotations

from jax import lax

from jaxpr_opt.analysis.in_place.row_views import StepRows, rows_of_stream
from jaxpr_opt.bridge.slicing import read_row
from jaxpr_opt.ir.graph import Op, Scan, Stream, Value
from jaxpr_opt.ir.rewriter import Rewriter


def row_of_step(rows: StepRows, step: Value, before: Op, rw: Rewriter) -> Value:
    """The row that a stream hands to a step of that number."""
    if not rows.is_counted:
        read = lambda array, step: read_row(array, rows.number(step), rows.axis)  # noqa: E731
        return rw.insert(read, rows.array, step, before=before)
    dtype = rows.array.dtype
    count = lambda step: lax.convert_element_type(rows.number(step), dtype)  # noqa: E731
    return rw.insert(count, step, before=before)


def row_at(stream: Stream, row: Value, scan: Scan, before: Op, rw: Rewriter) -> Value:
    """The row of that number of what a stream reads."""
    return row_of_step(rows_of_stream(stream, scan) or StepRows(stream.operand), row, before, rw)
