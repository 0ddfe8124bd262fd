"""A predicate of an array's elements, at a window of the array."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.access import Access
from jaxpr_opt.ir import Value

AtWindow = Callable[..., jax.Array]


def predicate_at(window: Access, predicate: Value) -> tuple[Value, AtWindow]:
    """The predicate at a window: the value to make it of, and the function of that value and of the
    window's indices that does.

    A predicate that is broadcast along the axes on which the window is but a part needs no index;
    another one is read as the array is.
    """
    root, axes = _spread(predicate)
    varying = [(axis, n) for axis, n in zip(axes, root.shape, strict=True) if n > 1]
    if any(window.sizes[axis] != n for axis, n in varying):
        return predicate, lambda predicate, *indices: _read(window, predicate, *indices)
    places = [window.axes.index(axis) for axis, _ in varying]
    return root, lambda root, *_: _laid(root, places, window.value.shape)


def _spread(predicate: Value) -> tuple[Value, tuple[int, ...]]:
    """What it is a broadcast of, and which axis of the predicate each axis of that is."""
    axes = tuple(range(len(predicate.shape)))
    while predicate.op is not None and predicate.op.name == "broadcast_in_dim":
        axes = tuple(axes[d] for d in predicate.op.params["broadcast_dimensions"])
        predicate = predicate.op.operands[0]
    return predicate, axes


def _laid(root: jax.Array, places: list[int], shape: tuple[int, ...]) -> jax.Array:
    """The root's axes of more than one element at these places of a shape; of one element, as it
    is: one for all.
    """
    kept = lax.reshape(root, tuple(n for n in root.shape if n > 1))
    if not places:
        return kept
    order = [int(d) for d in np.argsort(places)]
    return lax.broadcast_in_dim(lax.transpose(kept, order), shape, sorted(places))


def _read(window: Access, predicate: jax.Array, *indices: jax.Array) -> jax.Array:
    """What `window` reads, or writes over, of an array like its own."""
    if window.kind != "read":
        return window.read(predicate, *indices)
    primitive, params = window.op.primitive, window.op.params
    assert primitive is not None
    if "fill_value" in params:
        params = {**params, "fill_value": 0}
    read: jax.Array = primitive.bind(predicate, *indices, **params)
    return read
