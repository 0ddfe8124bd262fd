"""The code of a step of gradient descent: for rows of a sparse gradient, and for all elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.windows.descents import Descent
from jaxpr_opt.analysis.windows.scatter_chains import Piece
from jaxpr_opt.builders.at_most_once import at_most_once
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


def new_term(found: Descent, piece: Piece, rw: Rewriter) -> Value:
    """What is to be added to the array where a piece adds to it."""
    made = rw.insert(
        partial(_term_of_rows, found), piece.update, *found.scalars.values(), before=found.op
    )
    return made if found.op.name != "sub" else rw.insert(lax.neg, made, before=found.op)


def with_rows(
    found: Descent, array: Value, rows: Sequence[Value], before: Op, rw: Rewriter
) -> Value:
    """The array with new rows."""
    aval = found.op.result.aval
    for piece, row in zip(found.pieces, rows, strict=True):
        array = rw.typed(piece.write, aval, array, row, *piece.indices, before=before)
    return array


def with_terms(
    found: Descent, array: Value, terms: Sequence[Value], before: Op, rw: Rewriter
) -> Value:
    """The array with what each piece adds to it."""
    for piece, term in zip(found.pieces, terms, strict=True):
        operands = (array, term, *piece.indices)
        array = rw.typed(piece.add, found.op.result.aval, *operands, before=before)
    return array


def chosen(found: Descent, write: Callable[[Value, Op], Value], rw: Rewriter) -> Value:
    """What `write` makes of the array before an op; if a zero gradient changes other elements, too,
    of what that makes of it.
    """
    op = found.op
    if not found.unknown:
        return write(found.array, op)
    kept, changed = rw.new_region(), rw.new_region()
    zero = _zero(found, rw)
    whole = rw.insert(
        partial(_stepped_everywhere, found), found.array, zero, before=changed.terminator
    )
    for branch, array in ((kept, found.array), (changed, whole)):
        rw.set_outputs(branch, [write(array, branch.terminator)])
    keeps = rw.insert(lambda x: x == 0, zero, before=op)
    return rw.new_cond(keeps, [changed, kept], like=op, before=op).result


def updated(found: Descent, write: Callable[[Value, Op], Value], rw: Rewriter) -> Value:
    """The same where nothing differentiates any more, in place.  It is asked after the rows are
    written, so that they are read before it.
    """
    op = found.op
    written = write(found.array, op)
    if not found.unknown:
        return written
    zero = _zero(found, rw)

    def changed(arrays: Sequence[Value], before: Op) -> list[Value]:
        everywhere = partial(_stepped_everywhere, found)
        return [write(rw.insert(everywhere, *arrays, zero, before=before), before)]

    asked = rw.insert(lambda x: x != 0, zero, before=op)
    return at_most_once(asked, [written], changed, op, op, rw)[0]


# Condition 2 of update-rows.
def _zero(found: Descent, rw: Rewriter) -> Value:
    """What is added, or subtracted, where the gradient is zero: zero, or NaN."""
    return rw.insert(partial(_term_of_zero, found), *found.scalars.values(), before=found.op)


def _stepped(found: Descent, old: Any, update: Any, *scalars: Any) -> Any:
    """The step of rows: all ops are elementwise."""
    return _ending(found, old, _term_of_rows(found, update, *scalars))


def _term_of_rows(found: Descent, update: Any, *scalars: Any) -> Any:
    """What is added, or subtracted, where the gradient is these rows."""
    made = {found.dense: update}
    for value, scalar in zip(found.scalars, scalars, strict=True):
        made[value] = lax.broadcast(scalar, update.shape) if value.shape else scalar
    return _followed(found, made)


def _term_of_zero(found: Descent, *scalars: Any) -> Any:
    """What is added, or subtracted, where the gradient is zero."""
    made: dict[Value, Any] = {found.dense: jnp.zeros((), found.dense.dtype)}
    return _followed(found, made | dict(zip(found.scalars, scalars, strict=True)))


def _stepped_everywhere(found: Descent, array: Any, term: Any) -> Any:
    """The array with one number added to all elements, or subtracted."""
    return _ending(found, array, lax.broadcast(term, array.shape))


def _followed(found: Descent, made: dict[Value, Any]) -> Any:
    """The term that is added or subtracted, from what its ops read."""
    for op in found.path:
        made[op.result] = _again(op, [made[v] for v in op.operands])
    return made[found.term]


def _ending(found: Descent, array: Any, term: Any) -> Any:
    """The sum, or the difference, of an array and a term."""
    return _again(found.op, [array if v is found.array else term for v in found.op.operands])


def _again(op: Op, operands: Sequence[Any]) -> Any:
    assert op.primitive is not None
    return op.primitive.bind(*operands, **op.params)
