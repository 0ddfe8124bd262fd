"""Windows in zeros that are turned round, or of which an edge is cut off: they are windows of what
is left.

The transpose of a read of a reversed, padded, rolled or joined table makes such arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.sparse.moved_writes import window_in_zeros
from jaxpr_opt.analysis.sparse.scatter_chains import may_coincide
from jaxpr_opt.analysis.values.algebra import Plainer
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.windows.window_primitives import (
    CLIP,
    UPDATE,
    indexed_axes,
    places,
    scattering,
    update_axes,
    window_sizes,
)
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    combiner_of,
    dimensions_of,
    has_numbers,
    has_unique_indices,
    mode_of,
    numbers_of,
    padding_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.bridge.slicing import in_range, shifted, write_window
from jaxpr_opt.ir.graph import Op


def reversed_before(op: Op) -> Plainer | None:
    """A window in zeros that are turned round, and then added to others, is one turned round."""
    write = window_in_zeros(op, op.operands[0], UPDATE)
    if write is None or not _is_turned_by_places(write, dimensions_of(op)):
        return None
    value = write.operands[UPDATE[write.name]]

    def turned(value: jax.Array, *at: jax.Array) -> jax.Array:
        zeros = lax.full(op.result.shape, 0, value.dtype)
        return _written_reversed(write, dimensions_of(op), zeros, value, *at)

    return Plainer(turned, (value, *places(write)))


def written_backwards(op: Op) -> Plainer | None:
    """A write into an array turned round, or an addition, whose result is turned back, is one into
    the array.
    """
    write = op.operands[0].op
    if write is None or write.name not in UPDATE:
        return None
    if write.name == "scatter" and combiner_of(write):
        return None
    array, turned = write.operands[0], dimensions_of(op)
    # Condition 1 of remove-idle-moves.
    if array.op is None or array.op.name != "rev" or dimensions_of(array.op) != turned:
        return None
    if not _is_turned_by_places(write, turned):
        return None
    operands = array.op.operands[0], write.operands[UPDATE[write.name]], *places(write)
    return Plainer(partial(_written_reversed, write, turned), operands)


def _is_turned_by_places(write: Op, turned: Sequence[int]) -> bool:
    """Whether a window of an array turned round is at places counted from the other end."""
    # Condition 2 of map-before-writing, 1 of remove-idle-moves.
    is_indexed = not has_numbers(write) or {*turned} <= {*indexed_axes(write), *_whole(write)}
    return is_indexed and _are_counted(write)


def _written_reversed(
    write: Op, turned: Sequence[int], array: jax.Array, value: jax.Array, *at: jax.Array
) -> jax.Array:
    """The result of a write, turned round, made by writing to the array turned round."""
    sizes, axes = window_sizes(write), update_axes(write)
    last = {axis: array.shape[axis] - sizes[axis] for axis in turned}
    value = lax.rev(value, [axes[d] for d in turned if d in axes])
    if not has_numbers(write):
        starts = [in_range(s, array.shape[d] - sizes[d]) for d, s in enumerate(at)]
        starts = [last[d] - s if d in last else s for d, s in enumerate(starts)]
        return write_window(array, value, starts)
    moved = {d: (-1, n) for d, n in last.items() if d in indexed_axes(write)}
    return _scattered(write, array, value, _moved(write, at[0], moved), mode_of(write))


def cropped_before(op: Op) -> Plainer | None:
    """A window in zeros of which edges are cut off, and which is then added to others, is that part
    of it which is left, in zeros. A row in zeros also if zeros are put around it: several that are
    added up in one place are added up in fewer zeros.
    """
    write, low = window_in_zeros(op, op.operands[0], UPDATE), _moved_by(op)
    if write is None or low is None or not _are_counted(write):
        return None
    inner, shape, sizes = write.result.shape, op.result.shape, window_sizes(write)
    cut = [d for d, n in enumerate(inner) if low[d] or shape[d] != n]
    # Condition 2 of map-before-writing.
    if any(sizes[d] > shape[d] for d in cut):
        return None
    if not has_numbers(write):

        def cropped(value: jax.Array, *at: jax.Array) -> jax.Array:
            starts: list[Any] = [in_range(s, inner[d] - sizes[d]) for d, s in enumerate(at)]
            for d in cut:
                start = starts[d] + np.int32(low[d])
                starts[d] = in_range(start, shape[d] - sizes[d])
                value = shifted(value, starts[d] - start, sizes[d], d, np.zeros((), value.dtype))
            return write_window(lax.full(shape, 0, value.dtype), value, starts)

        return Plainer(cropped, (write.operands[1], *places(write)))
    # Condition 2 of map-before-writing.
    if not set(cut) <= set(indexed_axes(write)) or any(sizes[d] != 1 for d in cut):
        return None

    mode, drop = mode_of(write), lax.GatherScatterMode.FILL_OR_DROP
    is_larger = any(low[d] > 0 or inner[d] + low[d] < shape[d] for d in cut)
    # Condition 4 of map-before-writing.
    if is_larger and may_coincide(write):
        return None

    def cropped_rows(value: jax.Array, index: jax.Array) -> jax.Array:
        last = np.asarray([inner[d] - sizes[d] for d in indexed_axes(write)], index.dtype)
        if mode == CLIP:
            index = lax.clamp(index.dtype.type(0), index, jnp.broadcast_to(last, index.shape))
        moved = _moved(write, index, {d: (1, low[d]) for d in cut})
        if mode == drop and is_larger:  # what was dropped would be in range
            is_inside = ((index >= 0) & (index <= last)).all(-1, keepdims=True)
            moved = jnp.where(is_inside, moved, -1)
        zeros = lax.full(shape, 0, value.dtype)
        return _scattered(write, zeros, value, moved, drop)

    return Plainer(cropped_rows, (write.operands[2], *places(write)))


def _moved_by(op: Op) -> list[int] | None:
    """By how many places a slice or a pad moves what is left along each axis; None if it leaves
    elements out, or puts zeros in between.
    """
    if op.name == "slice":
        # Condition 2 of map-before-writing.
        is_dense = all(stride == 1 for stride in strides_of(op))
        return [-start for start in starts_of(op)] if is_dense else None
    config = padding_of(op)
    # Condition 2 of map-before-writing.
    is_dense = not any(inner for _, _, inner in config) and uniform(op.operands[1]) == 0
    return [low for low, _, _ in config] if is_dense else None


def _are_counted(write: Op) -> bool:
    """Whether places are numbers that say how far they are from either end."""
    signed = all(v.dtype in {np.dtype(np.int32), np.dtype(np.int64)} for v in places(write))
    # Condition 2 of map-before-writing.
    return signed if has_numbers(write) else all(dtypes.is_integer(v.dtype) for v in places(write))


def _whole(write: Op) -> list[int]:
    """The axes of which a window has all."""
    pairs = zip(window_sizes(write), write.result.shape, strict=True)
    return [d for d, (size, n) in enumerate(pairs) if size == n]


def _moved(write: Op, index: jax.Array, by: Mapping[int, tuple[int, int]]) -> jax.Array:
    """The places of a scatter, turned round and moved along some axes."""
    both = [by.get(axis, (1, 0)) for axis in indexed_axes(write)]
    if len(both) == 1:
        ((sign, offset),) = both
        return offset + index if sign > 0 else offset - index
    signs, offsets = (np.asarray(each, index.dtype) for each in zip(*both, strict=True))
    return index * signs + offsets


def _scattered(
    write: Op, array: jax.Array, value: jax.Array, index: jax.Array, mode: Any
) -> jax.Array:
    scatter = scattering(write)
    is_unique = has_unique_indices(write)
    return scatter(array, index, value, numbers_of(write), unique_indices=is_unique, mode=mode)
