"""Compute an op for one row of a batch, and use the result for all rows."""

from __future__ import annotations

import jax
from jax import lax

from jaxpr_opt.analysis.rows.row_axes import axis_of_operand
from jaxpr_opt.bridge import compat
from jaxpr_opt.bridge.parameters import of_single_rows
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def computed_once(op: Op, axis: int, rw: Rewriter) -> tuple[Value, ...]:
    """The results of an op whose rows along an axis are the same, computed of the first row."""
    axes = [axis_of_operand(op, position, axis) for position in range(len(op.operands))]
    params, shapes = of_single_rows(op, [axis]), [v.shape for v in op.results]

    def code(*operands: jax.Array) -> list[jax.Array]:
        rows = [
            x if along is None else lax.slice_in_dim(x, 0, 1, axis=along)
            for x, along in zip(operands, axes, strict=True)
        ]
        assert op.primitive is not None
        made = compat.bind(op.primitive, rows, params)
        return [
            lax.broadcast_in_dim(x, shape, range(x.ndim))
            for x, shape in zip(made, shapes, strict=True)
        ]

    return rw.insert_many(code, *op.operands, before=op)
