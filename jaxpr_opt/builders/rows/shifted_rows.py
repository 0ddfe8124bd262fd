"""The rows that all steps of a loop make, in one array, and those of a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
from jax import lax

from jaxpr_opt.analysis.rows.shifted_rows import ShiftedRow, ShiftedRows
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import dimension_of, of_shape
from jaxpr_opt.bridge.slicing import read_run
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.ir.graph import Value
from jaxpr_opt.ir.rewriter import Rewriter


def read_shifted(found: ShiftedRows, rw: Rewriter) -> Value:
    """The rows of a step, read of those of all steps, which are made before the loop."""
    made: dict[ShiftedRow, Value] = {}
    for row in found.rows:
        made[row] = _of_all(row, [made[part] for part in row.parts], found, rw)

    def own(array: jax.Array, step: jax.Array) -> jax.Array:
        start = lax.mul(step, dtypes.wrapped(step.dtype, found.shift))
        start = lax.add(start, dtypes.wrapped(step.dtype, -found.first))
        return read_run(array, start, found.width, found.axis)

    before = found.value.op
    assert before is not None
    step = rw.step(found.scan, before=before)
    return rw.typed(own, found.value.aval, made[found.row], step, before=before)


def _of_all(row: ShiftedRow, operands: Sequence[Value], found: ShiftedRows, rw: Rewriter) -> Value:
    """The rows of all steps, made of those of what a step makes its own of."""
    op, axis, shape, aval = row.value.op, row.axis, row.value.shape, row.value.aval
    if axis is not None:
        shape = (*shape[:axis], found.length, *shape[axis + 1 :])
    if row.numbers is not None and axis is not None:
        stride, dtype = row.numbers.strides[axis], aval.dtype
        least = row.numbers.offset + stride * found.first

        def numbers() -> jax.Array:
            places = lax.broadcasted_iota(dtype, shape, axis)
            places = lax.mul(places, dtypes.wrapped(dtype, stride))
            return lax.add(places, dtypes.wrapped(dtype, least))

        return rw.typed(numbers, aval, before=found.scan)
    if op is None or not found.scan.body.defines(row.value):
        return row.value
    if op.name == "iota":
        iota = partial(lax.broadcasted_iota, aval.dtype, shape, dimension_of(op))
        return rw.typed(iota, aval, before=found.scan)
    return on_others(op, operands, rw, before=found.scan, params=of_shape(op, shape))
