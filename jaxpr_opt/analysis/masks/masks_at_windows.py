"""A predicate of an array's elements, restricted to a window of the array."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.values.selected_cases import spread
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.bridge.parameters import numbers_of
from jaxpr_opt.ir.graph import Op, Value

AtWindow = Callable[..., jax.Array]
"""Of a value, and of the operands that say where the window is."""


def predicate_at(window: Access, predicate: Value) -> tuple[Value, AtWindow]:
    """A value, and a function of it and of the window's indices that gives the predicate at the
    window.

    One that `spread_at` does not know is read as the array is.
    """
    known = spread_at(window, predicate)
    if known is not None:
        root, at_window = known
        return root, lambda root, *_: at_window(root)
    return predicate, lambda predicate, *indices: _read(window, predicate, *indices)


def spread_at(window: Access, array: Value) -> tuple[Value, AtWindow] | None:
    """The same for any array: it must be a broadcast along all axes of which the window is a part
    only.

    One element for all may come as a scalar.
    """
    root, varying = _varying(array)
    # Condition 3 of sink-select-into-update.
    # Conditions 2, 3 of narrow-reads.
    if any(window.sizes[axis] != n for axis, n in varying):
        return None
    places = [window.axes.index(axis) for axis, _ in varying]
    return root, lambda root: _laid(root, places, window.value.shape)


def predicate_of_rows(window: Access, predicate: Value) -> tuple[Value, AtWindow] | None:
    """One boolean for each row of indices, in the shape of the indices of a gather or scatter; None
    if a window's elements may differ.
    """
    numbers = numbers_of(window.op)
    batch = dict(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    root, varying = _varying(predicate)
    # Condition 3 of sink-select-into-update.
    if any(axis not in batch for axis, _ in varying):
        return None
    places, (index,) = [batch[axis] for axis, _ in varying], window.indices
    return root, lambda root: _laid(root, places, index.shape)


def more_kept(select: Op, read: Op) -> int:
    """How many more bytes a loop keeps if it reads the operands of a select before it, not what
    that makes: of these, what nothing else reads.
    """
    loop = loop_of(read)
    if loop is None or loop.body.defines(select.result):
        return 0
    roots = (spread(each)[0] for each in select.operands)
    only_here = sum(v.nbytes for v in roots if v.op is not None and len(v.users) == 1)
    return only_here - select.result.nbytes


def _varying(array: Value) -> tuple[Value, list[tuple[int, int]]]:
    """The array that is broadcast to this one, and the axes on which it varies, with sizes."""
    root, axes = spread(array)
    return root, [(axis, n) for axis, n in zip(axes, root.shape, strict=True) if n != 1]


def _laid(root: jax.Array, places: list[int], shape: tuple[int, ...]) -> jax.Array:
    """The root's axes of more than one element at these places of a shape; of one element, as it
    is: one for all.
    """
    kept = lax.reshape(root, tuple(n for n in root.shape if n != 1)) if 1 in root.shape else root
    if not places:
        return kept
    order = [int(d) for d in np.argsort(places)]
    return lax.broadcast_in_dim(lax.transpose(kept, order), shape, sorted(places))


def _read(window: Access, predicate: jax.Array, *indices: jax.Array) -> jax.Array:
    """The elements that `window` reads, or writes over, of an array like its own."""
    if window.kind != "read":
        return window.read(predicate, *indices)
    primitive, params = window.op.primitive, window.op.params
    assert primitive is not None
    if window.op.name == "gather":
        params = {**params, "fill_value": False}
    read: jax.Array = primitive.bind(predicate, *indices, **params)
    return read
