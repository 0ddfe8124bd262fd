"""Arrays that are the same along an axis, and what is made before they are repeated along it."""

from __future__ import annotations

import jax
from jax import lax

from jaxpr_opt.analysis.values.algebra import Plainer
from jaxpr_opt.bridge.parameters import (
    broadcast_dimensions_of,
    dimension_of,
    is_in_order,
    is_resharded,
    limits_of,
    permutation_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.ir.graph import Op, is_sized


def sliced_before_spread(op: Op) -> Plainer | None:
    """The law slice(broadcast(x)) = broadcast(slice(x)), along the axes that `x` has."""
    inner, shape = op.operands[0].op, op.result.shape
    if inner is None or inner.name != "broadcast_in_dim" or len(inner.operands) != 1:
        return None
    (source,), axes = inner.operands, broadcast_dimensions_of(inner)
    if is_resharded(inner) or not is_sized(source.shape):
        return None
    windows = [(0, n, 1) for n in source.shape]
    for own, axis in enumerate(axes):
        # Condition 1 of remove-idle-moves.
        if source.shape[own] == inner.result.shape[axis]:
            windows[own] = starts_of(op)[axis], limits_of(op)[axis], strides_of(op)[axis]
    starts, limits, strides = zip(*windows, strict=True) if windows else ((), (), ())

    def spread(x: jax.Array) -> jax.Array:
        return lax.broadcast_in_dim(lax.slice(x, starts, limits, strides), shape, axes)

    return Plainer(spread, (source,))


def transposed_before_spread(op: Op) -> Plainer | None:
    """The law transpose(broadcast(x)) = broadcast(transpose(x)), also where axes of the broadcast
    are merged before.
    """
    order, made = permutation_of(op), op.operands[0].op
    groups: list[tuple[int, ...]] | None = [(axis,) for axis in range(len(order))]
    if made is not None and made.name == "reshape":
        groups, made = _merged(made), made.operands[0].op
    # Condition 1 of remove-idle-moves.
    if groups is None or made is None:
        return None
    if made.name != "broadcast_in_dim" or len(made.operands) != 1 or is_resharded(made):
        return None
    (source,), dims = made.operands, list(broadcast_dimensions_of(made))
    axes = [axis for at in order for axis in groups[at]]
    # Condition 1 of remove-idle-moves.
    if not is_sized(made.result.shape) or source.size == 1:  # what is written to it is moved
        return None
    kept = [axis for axis in axes if axis in dims]
    turned, to = [dims.index(axis) for axis in kept], [axes.index(axis) for axis in kept]
    whole, shape = [made.result.shape[axis] for axis in axes], op.result.shape

    def spread(x: jax.Array) -> jax.Array:
        return lax.reshape(lax.broadcast_in_dim(lax.transpose(x, turned), whole, to), shape)

    return Plainer(spread, (source,))


def _merged(reshape: Op) -> list[tuple[int, ...]] | None:
    """Which axes of the operand each axis of a reshape is merged of; None if one is split."""
    shape, found, at = reshape.operands[0].shape, list[tuple[int, ...]](), 0
    if not (is_in_order(reshape) and is_sized(shape) and is_sized(reshape.result.shape)):
        return None
    for n in reshape.result.shape:
        first, size = at, 1
        while at < len(shape) and (size < n or (at == first and size == n == shape[at])):
            size, at = size * shape[at], at + 1
        # Condition 1 of remove-idle-moves.
        if size != n:
            return None
        found.append(tuple(range(first, at)))
    return found if at == len(shape) else None


def counted_once(op: Op) -> Plainer | None:
    """An iota of several axes, which is that of one axis, repeated."""
    shape, axis, dtype = op.result.shape, dimension_of(op), op.result.dtype
    # Condition 2 of remove-idle-moves.
    if sum(n != 1 for n in shape) < 2 or is_resharded(op) or not is_sized(shape):
        return None

    def spread() -> jax.Array:
        return lax.broadcast_in_dim(lax.iota(dtype, shape[axis]), shape, (axis,))

    return Plainer(spread, ())
