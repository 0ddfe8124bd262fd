"""The few elements at one end of what would be sorted, selected."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.rows.sorted_ends import SortedEnd, SortedRead, axis_of_selection
from jaxpr_opt.bridge.parameters import (
    broadcast_dimensions_of,
    dimension_of,
    limits_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter

_FIRST, _LAST = np.int32(-1), np.int32(np.iinfo(np.int32).max)
"""As bits of a float: the NaN that is less than all numbers, and the one that is greater."""


def select_end(found: SortedEnd, rw: Rewriter) -> None:
    """Replace slices of what is sorted by slices of what is selected."""
    sort, ends = found.sort, dict[int, Value]()
    places = rw.insert(lambda x: _places(found, x), sort.operands[0], before=sort)
    for read in found.reads:
        if read.number not in ends:
            ends[read.number] = _end(found, read.number, places, rw)
        code = _slice_of(found, read)
        rw.replace(
            read.op.result, rw.typed(code, read.op.result.aval, ends[read.number], before=sort)
        )
        rw.erase_unread(read.op)


def _places(found: SortedEnd, keys: jax.Array) -> jax.Array:
    """Where the elements at the end are; equal ones in the order of the array, as a sort has them.

    A sort takes zeros of both signs as equal, and NaN as greater than all numbers; a selection
    compares bits.
    """
    keys = jnp.where(keys == 0, jnp.zeros_like(keys), keys)
    keys = keys if found.at_end else -keys
    bits = lax.bitcast_convert_type(keys, np.int32)
    bits = jnp.where(jnp.isnan(keys), _LAST if found.at_end else _FIRST, bits)
    keys = jnp.moveaxis(lax.bitcast_convert_type(bits, np.float32), found.axis, -1)
    if not found.at_end:
        places = lax.top_k(keys, found.count)[1]
    else:
        turned = lax.top_k(lax.rev(keys, (keys.ndim - 1,)), found.count)[1]
        places = lax.rev(found.length - 1 - turned, (keys.ndim - 1,))
    return jnp.moveaxis(places, -1, found.axis)


def _end(found: SortedEnd, number: int, places: Value, rw: Rewriter) -> Value:
    """The end of one of the arrays that are sorted."""
    array, result = found.sort.operands[number], found.sort.results[number]
    if _is_number(array, found.axis):
        return rw.insert(
            lambda at: lax.convert_element_type(at, array.dtype), places, before=found.sort
        )

    code = partial(_at_places, found.axis)
    return rw.typed(code, result.aval, array, places, before=found.sort)


def read_at_places(selection: Op, rw: Rewriter) -> None:
    """Read the numbers that an op selects at their places."""
    (array,), (values, places) = selection.operands, selection.results
    code, after = partial(_at_places, axis_of_selection(selection)), selection.next
    assert after is not None
    rw.replace(values, rw.typed(code, values.aval, array, places, before=after))


def _at_places(axis: int, array: jax.Array, places: jax.Array) -> jax.Array:
    return jnp.take_along_axis(array, places, axis, mode="promise_in_bounds")


def _is_number(array: Value, axis: int) -> bool:
    """Whether an array numbers the elements along an axis."""
    op = array.op
    if op is not None and op.name == "broadcast_in_dim":
        (source,) = op.operands
        is_along = tuple(broadcast_dimensions_of(op)) == (axis,)
        return is_along and source.shape == array.shape[axis : axis + 1] and _is_number(source, 0)
    return op is not None and op.name == "iota" and dimension_of(op) == axis


def _slice_of(found: SortedEnd, read: SortedRead) -> Callable[[jax.Array], jax.Array]:
    """What a read reads of the end."""

    def code(end: jax.Array) -> jax.Array:
        starts, limits = list(starts_of(read.op)), list(limits_of(read.op))
        starts[found.axis], limits[found.axis] = read.start - found.first, read.end - found.first
        rows = lax.slice(end, starts, limits, strides_of(read.op))
        return lax.rev(rows, (found.axis,)) if read.turned else rows

    return code
