"""The code of a step of gradient descent: for rows of a sparse gradient, and for all elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.in_place.descents import Descent
from jaxpr_opt.analysis.sparse.scatter_chains import Piece
from jaxpr_opt.builders.in_place.at_most_once import at_most_once
from jaxpr_opt.builders.same_op import evaluated, repeated
from jaxpr_opt.builders.sparse.repeated_rows import by_row
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def new_row(found: Descent, piece: Piece, rw: Rewriter) -> Value:
    """The new rows of the array where a piece adds to it."""
    last, update = found.last, piece.update
    # Condition 3 of update-rows.
    if piece.repeats:
        update = rw.insert(partial(by_row, piece), *piece.indices, update, before=last)
    old = rw.insert(piece.read, found.array, *piece.indices, before=last)
    return rw.insert(partial(_stepped, found, piece), old, update, *_sources(found), before=last)


def new_term(found: Descent, piece: Piece, rw: Rewriter) -> Value:
    """The term that a piece adds to the array."""
    code = partial(_added, found, piece)
    return rw.insert(code, piece.update, *_sources(found), before=found.last)


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
    zero, end = _zero(found, rw), changed.terminator
    everywhere = partial(_stepped_everywhere, found)
    whole = rw.insert(everywhere, found.array, zero, *_sources(found), before=end)
    for branch, array in ((kept, found.array), (changed, whole)):
        rw.set_outputs(branch, [write(array, branch.terminator)])
    keeps = rw.insert(lambda x: jnp.all(x == 0), zero, before=last)
    return rw.new_cond(keeps, [changed, kept], like=last, before=last).result


def updated(found: Descent, write: Callable[[Value, Op], Value], rw: Rewriter) -> Value:
    """The same where nothing differentiates any more, in place.  It is asked after the rows are
    written, so that they are read before it.
    """
    last = found.last
    written = write(found.array, last)
    if not found.unknown:
        return written
    zero, sources = _zero(found, rw), _sources(found)

    def changed(arrays: Sequence[Value], before: Op) -> list[Value]:
        everywhere = partial(_stepped_everywhere, found)
        return [write(rw.insert(everywhere, *arrays, zero, *sources, before=before), before)]

    asked = rw.insert(lambda x: jnp.any(x != 0), zero, before=last)
    return at_most_once(asked, [written], changed, last, last, rw)[0]


def _sources(found: Descent) -> list[Value]:
    return [each.source for each in found.shared.values()]


# Condition 2 of update-rows.
def _zero(found: Descent, rw: Rewriter) -> Value:
    """What is added, or subtracted, where the gradient is zero: zeros, or some are NaN.  It is as
    long as the array along the axes along which numbers differ, else of one element.
    """
    return rw.insert(partial(_term_of_zero, found), *_sources(found), before=found.last)


def _term_of_zero(found: Descent, *sources: Any) -> Any:
    zeros = jnp.zeros(_elsewhere(found), found.dense.dtype)
    return _followed(found, zeros, _given(found, sources, zeros.shape))


def _elsewhere(found: Descent) -> tuple[int, ...]:
    """The shape of one element for all that are the same."""
    axes = {axis for each in found.shared.values() for axis in each.axes}
    return tuple(n if d in axes else 1 for d, n in enumerate(found.array.shape))


def _given(
    found: Descent,
    sources: Iterable[Any],
    shape: tuple[int, ...],
    to: Mapping[int, int] | None = None,
) -> dict[Value, Any]:
    """What is shared, repeated for elements of another shape, where `to` says which of its axes
    those of the array are.
    """
    made = {}
    for (value, each), x in zip(found.shared.items(), sources, strict=True):
        axes = [d if to is None else to[d] for d in each.axes]
        made[value] = repeated(x, shape, axes) if value.shape else x
    return made


def _stepped(found: Descent, piece: Piece, old: Any, update: Any, *sources: Any) -> Any:
    """The step of rows: all ops are elementwise."""
    given = _given(found, sources, update.shape, piece.whole_axes)
    return _ending(found, old, _followed(found, update, given), given)


def _stepped_everywhere(found: Descent, array: Any, term: Any, *sources: Any) -> Any:
    """The array with one number added to all elements, or subtracted."""
    given = _given(found, sources, array.shape)
    laid = lax.broadcast_in_dim(term, array.shape, range(array.ndim))
    return _ending(found, array, laid, given)


def _added(found: Descent, piece: Piece, update: Any, *sources: Any) -> Any:
    """The term that the step adds to the rows: nothing if a choice is for the old array."""
    given = _given(found, sources, update.shape, piece.whole_axes)
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
