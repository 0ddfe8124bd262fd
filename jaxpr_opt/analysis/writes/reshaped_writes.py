"""Writes into a reshaped array that is reshaped back: they are writes into the array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.algebra import Plainer
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.values.moves import is_taken_back, keeps_order
from jaxpr_opt.analysis.windows.reshaped import groups, reshaped_window
from jaxpr_opt.analysis.windows.window_primitives import (
    CLIP,
    UPDATE,
    indexed_axes,
    places,
    scattering,
    window_sizes,
)
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import alike_in_both, combiner_of, mode_of, numbers_of
from jaxpr_opt.bridge.slicing import in_range, write_window
from jaxpr_opt.ir.graph import Op, Value


def written_in_shape(op: Op) -> Plainer | None:
    """A write into a reshaped array, or an addition, whose result is reshaped back, is one into the
    array, of a window that is reshaped: one element, or a run along one axis.
    """
    write = op.operands[0].op
    if write is None or write.name not in UPDATE or loop_of(op) is None:
        return None
    away = write.operands[0].op
    # Condition 1 of remove-idle-moves.
    if away is None or not (keeps_order(op) and is_taken_back(away, op)):
        return None
    if write.name == "scatter" and combiner_of(write):
        return None
    array, shape, new = away.operands[0], write.result.shape, op.result.shape
    update, at = write.operands[UPDATE[write.name]], places(write)
    if write.name != "dynamic_update_slice":
        return _scattered(write, op, array, update, at)
    moved = reshaped_window(shape, update.shape, new)
    # Condition 1 of remove-idle-moves.
    if moved is None:
        return None
    sizes, starts = moved

    def written(array: jax.Array, value: jax.Array, *at: jax.Array) -> jax.Array:
        last = [n - size for n, size in zip(shape, value.shape, strict=True)]
        inside = [in_range(x, n) for x, n in zip(at, last, strict=True)]
        return write_window(array, lax.reshape(value, sizes), starts(inside))

    return Plainer(written, (array, update, *at))


def _scattered(
    write: Op, op: Op, array: Value, update: Value, at: Sequence[Value]
) -> Plainer | None:
    """The same of a scatter, if windows have one element along axes that are joined or split."""
    numbers, indexed, sizes = numbers_of(write), indexed_axes(write), window_sizes(write)
    to: dict[int, int] = {}
    moved: list[tuple[list[int], list[int]]] = []
    # Condition 1 of remove-idle-moves.
    if any(v.dtype.kind != "i" or not dtypes.holds(v.dtype, array.size) for v in at):
        return None
    for old, axes in groups(write.result.shape, op.result.shape):
        if len(old) == len(axes) == 1:
            to[old[0]] = axes[0]
            continue
        is_single = all(d in indexed and d in numbers.inserted_window_dims for d in old)
        # Condition 1 of remove-idle-moves.
        if not (axes and is_single) or any(sizes[d] != 1 for d in old):
            return None
        moved.append((old, axes))
    single = [axis for _, axes in moved for axis in axes]
    split = [axis for old, axes in moved if old for axis in axes]
    kept = [axis for axis in indexed if axis in to]
    # Condition 1 of remove-idle-moves.
    if not (kept or split):
        return None
    there = numbers._replace(
        inserted_window_dims=tuple(
            sorted([*single, *(to[d] for d in numbers.inserted_window_dims if d in to)])
        ),
        scatter_dims_to_operand_dims=(*(to[d] for d in kept), *split),
        operand_batching_dims=tuple(to[d] for d in numbers.operand_batching_dims),
    )

    def written(array: jax.Array, value: jax.Array, index: jax.Array) -> jax.Array:
        columns = {axis: index[..., k] for k, axis in enumerate(indexed)}
        new = [columns[axis] for axis in kept]
        for old, axes in moved:
            if not old:
                continue  # an axis of one row more
            place = _joined([columns[d] for d in old], [write.result.shape[d] for d in old], write)
            new += _split(place, [op.result.shape[d] for d in axes])
        scatter = scattering(write)
        promised = {**alike_in_both(write), "indices_are_sorted": False}
        return scatter(array, jnp.stack(new, -1), value, there, **promised)

    return Plainer(written, (array, update, *at))


def _joined(columns: Sequence[jax.Array], shape: Sequence[int], write: Op) -> jax.Array:
    """The number of an element, counted over axes; -1 where it is out of range, if that counts."""
    if mode_of(write) == CLIP:
        columns = [in_range(each, n - 1) for each, n in zip(columns, shape, strict=True)]
    place: Any = columns[0]
    for each, n in zip(columns[1:], shape[1:], strict=True):
        place = place * np.asarray(n, place.dtype) + each
    if len(shape) > 1 and mode_of(write) != CLIP:
        ends = zip(columns, shape, strict=True)
        inside = jnp.stack([(each >= 0) & (each < n) for each, n in ends]).all(0)
        place = jnp.where(inside, place, -1)
    return place  # type: ignore[no-any-return]


def _split(place: jax.Array, shape: Sequence[int]) -> list[jax.Array]:
    """Where an element is along each axis; one that is out of range stays out of range."""
    digits: list[jax.Array] = []
    for n in reversed(shape[1:]):
        size = np.asarray(n, place.dtype)
        digits.insert(0, lax.rem(place, size))
        place = lax.div(place, size)
    return [place, *digits]
