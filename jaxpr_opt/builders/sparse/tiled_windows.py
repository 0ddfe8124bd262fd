"""A window at a known place, added by a scatter of windows that tile it, in the form of another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import jax
import jax.numpy as jnp
import numpy as np

from jaxpr_opt.analysis.sparse.scatter_chains import Piece
from jaxpr_opt.analysis.windows.window_primitives import indexed_axes, replaced, window_sizes
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import numbers_of, unsorted
from jaxpr_opt.ir.graph import Op


def are_tiles(scatter: Op, pad: Piece) -> bool:
    """Whether windows of the scatter tile the padded window: single places along some axes, all
    that there is along the others.
    """
    array, indexed, sizes = scatter.result, indexed_axes(scatter), window_sizes(scatter)
    batch = numbers_of(scatter).operand_batching_dims
    # Condition 3 of scatter-padded-windows.
    if not _rows(scatter):
        return False
    # Condition 3 of scatter-padded-windows.
    if max(array.shape) > dtypes.limits(scatter.operands[1].dtype)[1]:
        return False
    # Condition 3 of scatter-padded-windows.
    return all(
        sizes[axis] == 1 if axis in indexed else pad.update.shape[axis] == extent
        for axis, extent in enumerate(array.shape)
    ) and all(
        sizes[axis] == extent
        for axis, extent in enumerate(array.shape)
        if axis not in indexed and axis not in batch
    )


def are_joined(scatters: Sequence[Op]) -> bool:
    """Whether XLA joins scatters that are added: their indices differ along one axis at most."""
    first = _rows(scatters[0])[0]
    leads = [each.operands[1].shape[:-1] for each in scatters]
    return len({(*lead[:first], -1, *lead[first + 1 :]) for lead in leads}) == 1


def _rows(scatter: Op) -> list[int]:
    """The axes of the index that number windows, but for those of a batch."""
    batch = numbers_of(scatter).scatter_indices_batching_dims
    return [axis for axis in range(len(scatter.operands[1].shape) - 1) if axis not in batch]


def scattered(scatter: Op, pad: Piece) -> Callable[[jax.Array], jax.Array]:
    """Add an update to zeros where the pad does, by windows of the scatter.

    Its index differs along one axis only from that of the scatter, or XLA would not join the two.
    So there may be some windows too many: these add zeros.
    """
    axes, index = indexed_axes(scatter), scatter.operands[1]
    first, *others = _rows(scatter)
    inside = np.indices([pad.update.shape[axis] for axis in axes]).reshape(len(axes), -1).T
    too_many = -len(inside) % prod(index.shape[axis] for axis in others)
    beyond = [pad.update.shape[axis] if axis == axes[0] else 0 for axis in axes]
    read = np.concatenate([inside, np.tile(beyond, (too_many, 1)).astype(int)])
    added = np.concatenate([inside, 0 * read[len(inside) :]])
    added += [pad.starts[axis] for axis in axes]

    def indices(places: np.ndarray) -> jax.Array:
        ends = [index.shape[axis] if axis in others else 1 for axis in range(len(index.shape) - 1)]
        ends[first] = -1
        whole = list(index.shape)
        whole[first] = len(places) // prod(index.shape[axis] for axis in others)
        placed = np.broadcast_to(places.reshape(*ends, len(axes)), whole)
        return jnp.asarray(placed, index.dtype)

    def fun(update: jax.Array) -> jax.Array:
        assert scatter.primitive is not None
        zeros = jnp.zeros(pad.result.shape, update.dtype)
        if too_many:
            update = jnp.pad(update, [(0, int(axis == axes[0])) for axis in range(update.ndim)])
        windows = replaced(scatter, update, indices(read))
        made: jax.Array = scatter.primitive.bind(
            zeros, indices(added), windows, **unsorted(scatter)
        )
        return made

    return fun
