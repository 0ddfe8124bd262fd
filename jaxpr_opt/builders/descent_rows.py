"""The code of a step of gradient descent: for rows of a sparse gradient, and for all elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.windows.descents import Descent
from jaxpr_opt.analysis.windows.scatter_chains import Piece
from jaxpr_opt.builders.repeated_rows import by_row
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def new_row(found: Descent, piece: Piece, rw: Rewriter) -> Value:
    """The new rows of the array where a piece adds to it."""
    op, update = found.op, piece.update
    # Condition 3 of update-rows.
    if piece.repeats:
        update = rw.insert(partial(by_row, piece), *piece.indices, update, before=op)
    old = rw.insert(piece.read, found.array, *piece.indices, before=op)
    scalars = found.scalars.values()
    return rw.insert(partial(_stepped, found), old, update, *scalars, before=op)


def with_rows(
    found: Descent, array: Value, rows: Sequence[Value], before: Op, rw: Rewriter
) -> Value:
    """The array with new rows."""
    aval = found.op.result.aval
    for piece, row in zip(found.pieces, rows, strict=True):
        array = rw.typed(piece.write, aval, array, row, *piece.indices, before=before)
    return array


def _stepped(found: Descent, old: Any, update: Any, *scalars: Any) -> Any:
    """The step of rows: all ops are elementwise."""
    made = {found.dense: update}
    for value, scalar in zip(found.scalars, scalars, strict=True):
        made[value] = lax.broadcast(scalar, update.shape) if value.shape else scalar
    return _ending(found, old, _followed(found, made))


def step_from_zero(found: Descent, *scalars: Any) -> Any:
    """What is added, or subtracted, where the gradient is zero."""
    made: dict[Value, Any] = {found.dense: jnp.zeros((), found.dense.dtype)}
    return _followed(found, made | dict(zip(found.scalars, scalars, strict=True)))


def stepped_everywhere(found: Descent, array: Any, term: Any) -> Any:
    """The array with one number added to all elements, or subtracted."""
    return _ending(found, array, lax.broadcast(term, array.shape))


def _followed(found: Descent, made: dict[Value, Any]) -> Any:
    """The term that is added or subtracted, from what its ops read."""
    for op in found.path:
        made[op.result] = _again(op, [made[v] for v in op.operands])
    return made[found.path[-1].result]


def _ending(found: Descent, array: Any, term: Any) -> Any:
    """The sum, or the difference, of an array and a term."""
    return _again(found.op, [array if v is found.array else term for v in found.op.operands])


def _again(op: Op, operands: Sequence[Any]) -> Any:
    assert op.primitive is not None
    return op.primitive.bind(*operands, **op.params)
