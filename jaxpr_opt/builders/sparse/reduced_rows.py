"""Reduce an array that is made of zeros but for rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.sparse.made_of_rows import MadeOfRows
from jaxpr_opt.analysis.sparse.scatter_chains import Piece
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.same_op import COMBINED, bound, evaluated, spread
from jaxpr_opt.builders.sparse.repeated_rows import ScatteredRows
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def reduced(op: Op, made: MadeOfRows, rw: Rewriter) -> Value:
    """The result of a reduction of all elements."""
    reduce_rows = _summed if op.name == "reduce_sum" else _combined
    return rw.typed(partial(reduce_rows, op, made), op.result.aval, *made.operands, before=op)


def _combined(op: Op, made: MadeOfRows, *given: Any) -> jax.Array:
    """The rows and what is made of zero, each at least once."""
    scalars, pieces = made.split(given)
    left: jax.Array = _made(made, jnp.zeros((), made.dense.dtype), scalars)
    for each in pieces:
        rows, are_there = _rows(made, scalars, *each)
        of_rows = _of_all(op, jnp.where(are_there, rows, left))
        left = COMBINED[op.name](left, of_rows)
    return left


def _summed(op: Op, made: MadeOfRows, *given: Any) -> jax.Array:
    """Each row once, and what is made of zero for all other elements."""
    scalars, pieces = made.split(given)
    zero = _made(made, jnp.zeros((), made.dense.dtype), scalars)
    total, others = lax.full((), 0, zero.dtype), _number(prod(made.dense.shape), zero.dtype)
    for each in pieces:
        rows, are_there = _rows(made, scalars, *each)
        total = lax.add(total, _of_all(op, jnp.where(are_there, rows, jnp.zeros_like(rows))))
        others -= jnp.sum(jnp.broadcast_to(are_there, rows.shape), dtype=zero.dtype)
    return lax.add(total, jnp.where(zero == 0, zero, lax.mul(zero, others)))


def _number(number: int, dtype: np.dtype[Any]) -> jax.Array:
    """A number of a type, modulo its numbers if those are integers."""
    is_integer = np.issubdtype(dtype, np.integer)
    return lax.full((), dtypes.wrapped(dtype, number) if is_integer else number, dtype)


def _rows(
    made: MadeOfRows, scalars: list[Any], piece: Piece, update: Any, places: list[Any]
) -> tuple[jax.Array, jax.Array]:
    """The rows that are reduced of a piece, and a mask of those that count."""
    rows = ScatteredRows([piece], [places], [update])
    (sums,) = rows.sums
    lead = (-1, *[1] * (sums.ndim - 1))
    return _made(made, sums, scalars), jnp.reshape(rows.are_slots, lead)


def _made(found: MadeOfRows, elements: jax.Array, scalars: Sequence[Any]) -> jax.Array:
    """The result of the ops for some elements of the array, given the scalars."""
    given = spread(found.scalars, scalars, elements.shape)
    made: jax.Array = evaluated(found.ops, {found.dense: elements, **given})[found.result]
    return made


def _of_all(op: Op, elements: jax.Array) -> jax.Array:
    """The same reduction of all of some elements."""
    result: jax.Array = bound(
        op, elements, params={**op.params, "axes": tuple(range(elements.ndim))}
    )
    return result
