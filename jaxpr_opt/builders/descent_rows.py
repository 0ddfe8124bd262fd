"""The code of a step of gradient descent: for rows of a sparse gradient, and for all elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.windows.descents import Descent
from jaxpr_opt.analysis.windows.scatter_chains import Piece
from jaxpr_opt.builders.at_most_once import at_most_once
from jaxpr_opt.builders.repeated_rows import by_row
from jaxpr_opt.builders.same_op import evaluated, spread
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def new_row(found: Descent, piece: Piece, rw: Rewriter) -> Value:
    """The new rows of the array where a piece adds to it."""
    last, update = found.last, piece.update
    # Condition 3 of update-rows.
    if piece.repeats:
        update = rw.insert(partial(by_row, piece), *piece.indices, update, before=last)
    old = rw.insert(piece.read, found.array, *piece.indices, before=last)
    scalars = found.scalars.values()
    return rw.insert(partial(_stepped, found), old, update, *scalars, before=last)


def new_term(found: Descent, piece: Piece, rw: Rewriter) -> Value:
    """The term that a piece adds to the array."""
    scalars = found.scalars.values()
    return rw.insert(partial(_added, found), piece.update, *scalars, before=found.last)


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
    """The array that `write` makes of the old one; if a zero gradient changes other elements, too,
    of the array after these changes.
    """
    last = found.last
    if not found.unknown:
        return write(found.array, last)
    kept, changed = rw.new_region(), rw.new_region()
    zero, scalars = _zero(found, rw), found.scalars.values()
    whole = rw.insert(
        partial(_stepped_everywhere, found), found.array, zero, *scalars, before=changed.terminator
    )
    for branch, array in ((kept, found.array), (changed, whole)):
        rw.set_outputs(branch, [write(array, branch.terminator)])
    keeps = rw.insert(lambda x: x == 0, zero, before=last)
    return rw.new_cond(keeps, [changed, kept], like=last, before=last).result


def updated(found: Descent, write: Callable[[Value, Op], Value], rw: Rewriter) -> Value:
    """The same where nothing differentiates any more, in place.  It is asked after the rows are
    written, so that they are read before it.
    """
    last = found.last
    written = write(found.array, last)
    if not found.unknown:
        return written
    zero, scalars = _zero(found, rw), found.scalars.values()

    def changed(arrays: Sequence[Value], before: Op) -> list[Value]:
        everywhere = partial(_stepped_everywhere, found)
        return [write(rw.insert(everywhere, *arrays, zero, *scalars, before=before), before)]

    asked = rw.insert(lambda x: x != 0, zero, before=last)
    return at_most_once(asked, [written], changed, last, last, rw)[0]


# Condition 2 of update-rows.
def _zero(found: Descent, rw: Rewriter) -> Value:
    """The number that is added, or subtracted, where the gradient is zero: zero, or NaN."""
    return rw.insert(partial(_term_of_zero, found), *found.scalars.values(), before=found.last)


def _term_of_zero(found: Descent, *scalars: Any) -> Any:
    zero = jnp.zeros((), found.dense.dtype)
    return _followed(found, zero, dict(zip(found.scalars, scalars, strict=True)))


def _stepped(found: Descent, old: Any, update: Any, *scalars: Any) -> Any:
    """The step of rows: all ops are elementwise."""
    given = spread(found.scalars, scalars, update.shape)
    return _ending(found, old, _followed(found, update, given), given)


def _stepped_everywhere(found: Descent, array: Any, term: Any, *scalars: Any) -> Any:
    """The array with one number added to all elements, or subtracted."""
    given = spread(found.scalars, scalars, array.shape)
    return _ending(found, array, lax.broadcast(term, array.shape), given)


def _added(found: Descent, update: Any, *scalars: Any) -> Any:
    """The term that the step adds to the rows: nothing if a scalar chooses the old array."""
    given = spread(found.scalars, scalars, update.shape)
    term = _followed(found, update, given)
    term = lax.neg(term) if found.op.name == "sub" else term
    if not found.choices:
        return term
    made = {**given, found.op.result: term, found.array: lax.full_like(term, -0.0)}
    return evaluated(found.choices, made)[found.last.result]


def _followed(found: Descent, update: Any, given: Mapping[Value, Any]) -> Any:
    """The term that is added or subtracted where the gradient is `update`."""
    return evaluated(found.path, {found.dense: update, **given})[found.term]


def _ending(found: Descent, array: Any, term: Any, given: Mapping[Value, Any]) -> Any:
    """The sum, or the difference, of an array and a term, or the array if it is chosen."""
    made = {found.term: term, **given, found.array: array}
    return evaluated((found.op, *found.choices), made)[found.last.result]
