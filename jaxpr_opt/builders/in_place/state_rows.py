"""The code of an optimizer's step: for the rows of a sparse gradient, and for all elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial, reduce
from itertools import islice
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.in_place.states import States
from jaxpr_opt.bridge.parameters import axes_of, broadcast_dimensions_of
from jaxpr_opt.builders.same_op import bound, repeated
from jaxpr_opt.builders.sparse.repeated_rows import ScatteredRows
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.devices import has_divided_rows
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import ELEMENTWISE, PICKING


def operands(found: States) -> list[Value]:
    """The values that a step reads: row indices, updates, outer arrays, scalars, carried arrays."""
    return [
        *(index for piece in found.pieces for index in piece.indices),
        *(piece.update for piece in found.pieces),
        *outer_operands(found),
        *found.changing.values(),
        *(array.param for array in found.arrays),
    ]


def outer_operands(found: States) -> list[Value]:
    """Those of them that are the same in all steps."""
    outer = [found.shared[v].source if v in found.shared else v for v in found.outer]
    return [*outer, *found.scalars.values()]


def stays_at_start(found: States, *given: Any) -> jax.Array:
    """Whether elements of the initial arrays keep their values where the gradient is zero.

    A loop over blocks of rows asks: XLA stores what it reduces, a byte for each element.
    """
    rest = iter(given)
    outer, scalars = (list(islice(rest, len(each))) for each in (found.outer, found.scalars))
    arrays = [*_laid(found, found.outer, outer), *rest]
    count, row = arrays[-1].shape[0], max(prod(each.shape[1:]) for each in arrays)
    block = cost_model().block(row)

    def stays(rows: list[jax.Array]) -> jax.Array:
        return _stays(found, rows[: len(outer)], scalars, rows[len(outer) :])

    def step(i: jax.Array, still: jax.Array) -> jax.Array:
        start = lax.min(i * block, count - block)
        rows = [
            lax.dynamic_slice_in_dim(each, start, block) if each.shape[0] == count else each
            for each in arrays
        ]
        return lax.bitwise_and(still, stays(rows))

    scan, inits = found.scan, [array.init for array in found.arrays]
    if block >= count or any(v and scan and has_divided_rows(v, scan) for v in inits):
        return stays(arrays)
    still: jax.Array = lax.fori_loop(0, -(-count // block), step, jnp.asarray(True))
    return still


def all_changed(found: States, new: Sequence[Any], *given: Any) -> list[Any]:
    """The next arrays: what a zero gradient makes of all elements, and new rows."""
    indices, updates, outer, scalars, changing, carried = _split(found, given)
    everywhere = _at_zero(found, outer, [*scalars, *changing], carried)
    rows = ScatteredRows(found.pieces, indices, updates)
    return [rows.write(a, r) for a, r in zip(everywhere, new, strict=True)]


def changed(
    found: States, flag: jax.Array, *given: Any
) -> tuple[list[Any], list[Any], jax.Array, jax.Array]:
    """The arrays with new rows, if no other element changes; these rows; whether that is so; and
    whether it may be so in the next step.

    `flag` says whether the carried arrays have passed the tests of all steps before.
    """
    indices, updates, outer, scalars, changing, carried = _split(found, given)
    rows = ScatteredRows(found.pieces, indices, updates)
    old = [rows.read(each) for each in carried]
    others = [rows.read(x) for x in _spread(found, found.outer, outer)]
    known = _arrays(found, others, old)
    known.update(zip((piece.result for piece in found.pieces), rows.sums, strict=True))
    shared = (rows.read(x) if x.ndim else x for x in _spread(found, found.changing, changing))
    new = _evaluated(found, known, [*scalars, *shared], old[0].shape)
    pairs = zip(found.changing, changing, strict=True)
    kept = (_keeps_zeros(v, x) for v, x in pairs if x.dtype != bool)
    up = reduce(lax.bitwise_and, kept, flag)
    chosen = [lax.select(lax.broadcast(up, n.shape), n, o) for n, o in zip(new, old, strict=True)]
    written = [rows.write(a, r) for a, r in zip(carried, chosen, strict=True)]
    still = up if found.is_plain else lax.bitwise_and(up, _stays(found, others, scalars, new))
    return written, new, up, still


def _split(found: States, given: Iterable[Any]) -> list[list[Any]]:
    """The values of `operands`, kind by kind."""
    rest = iter(given)
    indices = [list(islice(rest, len(piece.indices))) for piece in found.pieces]
    sizes = len(found.pieces), len(found.outer), len(found.scalars), len(found.changing)
    updates, outer, scalars, changing = (list(islice(rest, size)) for size in sizes)
    outer, changing = _laid(found, found.outer, outer), _laid(found, found.changing, changing)
    return [indices, updates, outer, scalars, changing, list(rest)]


def _laid(found: States, values: Iterable[Value], given: Iterable[Any]) -> list[Any]:
    """Operands; those that are shared with one element along the axes along which they repeat."""
    made, shape = [], found.pieces[0].result.shape
    for value, x in zip(values, given, strict=True):
        axes = found.shared[value].axes if value in found.shared else None
        ones = [n if axes is None or d in axes else 1 for d, n in enumerate(shape)]
        made.append(x if axes is None else repeated(x, tuple(ones), axes))
    return made


def _spread(found: States, values: Iterable[Value], given: Iterable[Any]) -> list[Any]:
    """The same, as large as the arrays: what reads rows of them makes no such arrays."""
    shape = found.pieces[0].result.shape
    pairs = zip(values, given, strict=True)
    return [jnp.broadcast_to(x, shape) if v in found.shared else x for v, x in pairs]


def _evaluated(
    found: States, known: dict[Value, Any], scalars: Sequence[Any], shape: tuple[int, ...]
) -> list[Any]:
    """The next arrays, or rows of them: those of the first array have such a shape."""
    made = dict(known)
    for value, x in zip((*found.scalars, *found.changing), scalars, strict=True):
        made[value] = _for_rows(found, value, x, shape)
    for op in found.ops:
        make = bound if op.name in ELEMENTWISE or not found.rows else partial(_of_rows, found)
        made[op.result] = make(op, *(made[v] for v in op.operands))
    return [made[array.next] for array in found.arrays]


def _for_rows(found: States, value: Value, x: jax.Array, first: tuple[int, ...]) -> jax.Array:
    """A value that is the same for all rows: repeated, or with as many axes as rows have."""
    if not value.shape:
        return x
    if value in found.shared:
        return jnp.broadcast_to(x, _shape(found, found.pieces[0].result, first))
    shape = _shape(found, value, first)
    if not x.shape:
        return lax.broadcast(x, shape)
    inner = value.shape[found.rows :]
    if found.rows and set(value.shape[: found.rows]) == {1}:
        return lax.reshape(x, (*(1,) * (len(shape) - len(inner)), *inner))
    return x


def _shape(found: States, value: Value, first: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of rows of an array, where those of the first array have such a shape."""
    if not found.rows:
        return first
    inner = len(found.arrays[0].param.shape) - found.rows
    return (*first[: len(first) - inner], *value.shape[found.rows :])


def _of_rows(found: States, op: Op, array: jax.Array) -> jax.Array:
    """The rows that an op computes of some rows, which may lie along one axis, not several; the op
    lays out each row by itself, or picks of it.
    """
    rows = found.rows
    lead = array.shape[: array.ndim - len(op.operands[0].shape) + rows]
    less = rows - len(lead)
    if op.name in PICKING:
        axes = tuple(axis - less for axis in axes_of(op))
        picked: jax.Array = bound(op, array, params={**op.params, "axes": axes})
        return picked
    shape = (*lead, *op.result.shape[rows:])
    if op.name != "broadcast_in_dim":
        return lax.reshape(array, shape)
    to = [axis - less for axis in broadcast_dimensions_of(op)[rows:]]
    return lax.broadcast_in_dim(array, shape, (*range(len(lead)), *to))


def _arrays(found: States, outer: Sequence[Any], carried: Sequence[Any]) -> dict[Value, Any]:
    params, pairs = (array.param for array in found.arrays), zip(found.outer, outer, strict=True)
    shape = _shape(found, found.pieces[0].result, carried[0].shape)
    laid = (jnp.broadcast_to(x, shape) if v in found.shared else x for v, x in pairs)
    return dict(zip((*found.outer, *params), (*laid, *carried), strict=True))


def _stays(
    found: States, outer: Sequence[Any], scalars: Sequence[Any], carried: Sequence[Any]
) -> jax.Array:
    """Whether elements keep their values where the gradient is zero, if the step's scalars keep
    zeros.
    """
    ones = [jnp.ones((), value.dtype) for value in found.changing]
    after = _at_zero(found, outer, [*scalars, *ones], carried)
    return reduce(lax.bitwise_and, map(_alike, carried, after))


def _at_zero(
    found: States, outer: Sequence[Any], scalars: Sequence[Any], carried: Sequence[Any]
) -> list[Any]:
    """The elements that an update leaves where the gradient is zero."""
    known, shape = _arrays(found, outer, carried), carried[0].shape
    for piece in found.pieces:
        rows = _shape(found, piece.result, shape)
        known[piece.result] = jnp.zeros(rows, piece.result.dtype)
    return _evaluated(found, known, scalars, shape)


def _alike(a: jax.Array, b: jax.Array) -> jax.Array:
    both = lax.bitwise_and(lax.ne(a, a), lax.ne(b, b))
    return jnp.all(lax.bitwise_or(lax.eq(a, b), both))


def _keeps_zeros(value: Value, scalar: jax.Array) -> jax.Array:
    """Whether zero times a scalar is zero, and zero divided by it if it divides; or by all numbers
    of an array.
    """
    is_real = jnp.issubdtype(scalar.dtype, jnp.floating)
    keeps = lax.is_finite(scalar) if is_real else lax.full_like(scalar, True, np.bool_)
    if any(op.name == "div" and position == 1 for op, position in value.uses):
        keeps = lax.bitwise_and(keeps, lax.ne(scalar, lax.full_like(scalar, 0)))
    return lax.reduce_and(keeps, range(keeps.ndim))
