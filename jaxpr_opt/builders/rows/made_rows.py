"""The rows of an array that loops stream, made in their steps."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.rows.streamed_rows import StreamedRow, StreamedRows
from jaxpr_opt.bridge.parameters import dimension_of, of_one_row
from jaxpr_opt.builders.residual_transfer import streamed_along
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def make_rows(found: StreamedRows, rw: Rewriter) -> None:
    """Make each row where a step reads it; what made the array is then read by nothing."""
    array = found.row.value
    for scan in found.loops:
        first = scan.body.first
        assert first is not None
        made = _Step(scan, first, rw).row(found.row)
        row = rw.reshape(made, array.shape[1:], before=first)
        for stream in [each for each in scan.streams if each.operand is array]:
            rw.replace(stream.param, row)
        rw.set_scan(scan, streams=[s for s in scan.streams if s.operand is not array])


class _Step:
    """Where rows are made in a loop's step; along their axis they have one element."""

    def __init__(self, scan: Scan, before: Op, rw: Rewriter) -> None:
        self.scan, self.before, self.rw = scan, before, rw
        self.made: dict[tuple[Value, int | None], Value] = {}

    def row(self, row: StreamedRow) -> Value:
        key = row.value, row.axis
        if key not in self.made:
            self.made[key] = self._found(row)
        return self.made[key]

    def _found(self, row: StreamedRow) -> Value:
        if row.parts is not None:
            return self._made(row)
        if row.axis is None:
            return row.value
        return streamed_along(row.value, row.axis, self.scan, self.rw, before=self.before)

    def _made(self, row: StreamedRow) -> Value:
        op, axis, parts = row.value.op, row.axis, row.parts
        assert op is not None and parts is not None
        if op.name == "iota" and axis is not None:
            return self._numbers(op, axis)
        operands = [self.row(part) for part in parts]
        params = None if axis is None else of_one_row(op, parts[0].axis, axis)
        return on_others(op, operands, self.rw, before=self.before, params=params)

    def _numbers(self, op: Op, axis: int) -> Value:
        along, aval = dimension_of(op), op.result.aval
        shape, dtype = _one(op.result.shape, axis), np.dtype(aval.dtype)

        def numbers(*step: jax.Array) -> jax.Array:
            if not step:
                return lax.broadcasted_iota(dtype, shape, along)
            return lax.broadcast(lax.convert_element_type(step[0], dtype), shape)

        step = [self.rw.step(self.scan, before=self.before)] if along == axis else []
        return self.rw.typed(numbers, aval, *step, before=self.before)


def _one(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], 1, *shape[axis + 1 :])
