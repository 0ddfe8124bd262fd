"""Arrays that are the same along an axis, and what is made before they are repeated along it."""

from __future__ import annotations

import jax
from jax import lax

from jaxpr_opt.analysis.values.algebra import Plainer
from jaxpr_opt.bridge.parameters import (
    broadcast_dimensions_of,
    dimension_of,
    is_resharded,
    limits_of,
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


def counted_once(op: Op) -> Plainer | None:
    """An iota of several axes, which is that of one axis, repeated."""
    shape, axis, dtype = op.result.shape, dimension_of(op), op.result.dtype
    # Condition 2 of remove-idle-moves.
    if sum(n != 1 for n in shape) < 2 or is_resharded(op) or not is_sized(shape):
        return None

    def spread() -> jax.Array:
        return lax.broadcast_in_dim(lax.iota(dtype, shape[axis]), shape, (axis,))

    return Plainer(spread, ())
