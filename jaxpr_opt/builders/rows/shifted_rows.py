"""The rows that all steps of a loop make, in one array, and those of a step."""

from __future__ import annotations

import jax
from jax import lax

from jaxpr_opt.analysis.rows.shifted_rows import ShiftedRow, ShiftedRows
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import dimension_of, of_shape
from jaxpr_opt.bridge.slicing import read_run
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def read_shifted(found: ShiftedRows, rw: Rewriter) -> Value:
    """The rows of a step, read of those of all steps, which are made before the loop."""
    array, before = _All(found, rw).rows(found.row), found.value.op
    assert before is not None

    def own(array: jax.Array, step: jax.Array) -> jax.Array:
        start = lax.mul(step, dtypes.wrapped(step.dtype, found.shift))
        start = lax.add(start, dtypes.wrapped(step.dtype, -found.first))
        return read_run(array, start, found.width, found.axis)

    step = rw.step(found.scan, before=before)
    return rw.typed(own, found.value.aval, array, step, before=before)


class _All:
    """What makes the rows of all steps."""

    def __init__(self, found: ShiftedRows, rw: Rewriter) -> None:
        self.found, self.rw = found, rw
        self.made: dict[tuple[Value, int | None], Value] = {}

    @property
    def before(self) -> Op:
        return self.found.scan

    def rows(self, row: ShiftedRow) -> Value:
        key = row.value, row.axis
        if key not in self.made:
            self.made[key] = self._made(row)
        return self.made[key]

    def _made(self, row: ShiftedRow) -> Value:
        op, shape = row.value.op, self._shape(row)
        if row.numbers is not None:
            return self._numbers(row)
        if op is None or not self.found.scan.body.defines(row.value):
            return row.value
        if op.name == "iota":
            return self._iota(op, shape)
        params = of_shape(op, shape)
        operands = [self.rows(part) for part in row.parts]
        return on_others(op, operands, self.rw, before=self.before, params=params)

    def _shape(self, row: ShiftedRow) -> tuple[int, ...]:
        shape = row.value.shape
        if row.axis is None:
            return shape
        return (*shape[: row.axis], self.found.length, *shape[row.axis + 1 :])

    def _numbers(self, row: ShiftedRow) -> Value:
        numbers, axis, aval = row.numbers, row.axis, row.value.aval
        assert numbers is not None and axis is not None
        stride, shape = numbers.strides[axis], self._shape(row)
        least = numbers.offset + stride * self.found.first

        def code() -> jax.Array:
            places = lax.mul(lax.broadcasted_iota(aval.dtype, shape, axis), aval.dtype.type(stride))
            return lax.add(places, aval.dtype.type(least))

        return self.rw.typed(code, aval, before=self.before)

    def _iota(self, op: Op, shape: tuple[int, ...]) -> Value:
        aval, along = op.result.aval, dimension_of(op)
        code = lambda: lax.broadcasted_iota(aval.dtype, shape, along)  # noqa: E731
        return self.rw.typed(code, aval, before=self.before)
