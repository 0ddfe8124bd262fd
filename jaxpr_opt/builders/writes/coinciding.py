"""Read a window of an array as it was before another window was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.constants import is_weak, strong
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.analysis.windows.coinciding import batch, single_axes
from jaxpr_opt.bridge.parameters import has_numbers, mode_of, numbers_of
from jaxpr_opt.bridge.slicing import in_range
from jaxpr_opt.ir.graph import Value


def read_around(read: Access, write: Access) -> tuple[Callable[..., jax.Array], tuple[Value, ...]]:
    """A function that reads a written array, and its operands: it selects the written value if the
    two windows coincide, else the old one.  The windows are comparable
    (`jaxpr_opt.analysis.windows.coinciding`).
    """
    primitive, params, count = read.op.primitive, read.op.params, len(read.indices)
    assert primitive is not None
    is_strong = is_weak(write.value)

    def fun(array: jax.Array, value: jax.Array, *places: jax.Array) -> jax.Array:
        here, there = places[:count], places[count:]
        old = primitive.bind(array, *here, **params)
        new = write.to_window(strong(value) if is_strong else value)
        new = read.from_window(new)
        if write.kind == "add":
            new = lax.add(old, new)
        return lax.select_n(_coincide(read, here, write, there), old, new)

    return fun, (write.array, write.value, *read.indices, *write.indices)


def kept(write: Access, index: jax.Array) -> jax.Array:
    """Which elements of its value a scatter does not drop."""
    numbers = numbers_of(write.op)
    axes = numbers.scatter_dims_to_operand_dims
    last = [write.array.shape[d] - write.window[d].size for d in axes]
    rows = jnp.all((index >= 0) & (index <= jnp.array(last, index.dtype)), axis=-1)
    shape = write.value.shape
    lead = [d for d in range(len(shape)) if d not in numbers.update_window_dims]
    return lax.broadcast_in_dim(rows, shape, lead)


def _coincide(
    read: Access, here: Sequence[jax.Array], write: Access, there: Sequence[jax.Array]
) -> jax.Array:
    """For each element of what is read, whether it has been written."""
    tests = []
    for axis in single_axes(read):
        i, j = _start(read, axis, here), _start(write, axis, there)
        last = read.array.shape[axis] - 1
        tests += [_in_range(each, at, last) for each, at in ((read, i), (write, j))]
        tests.append(in_range(i, last) == in_range(j, last))
    same = reduce(jnp.logical_and, (test for test in tests if test is not None))
    return read.from_window(jnp.broadcast_to(same, read.sizes))


def _in_range(window: Access, start: jax.Array, last: int) -> jax.Array | None:
    """Whether a window is not dropped, where that may happen."""
    if mode_of(window.op) != lax.GatherScatterMode.FILL_OR_DROP or window.is_located:
        return None
    return (start >= 0) & (start <= last)


def _start(window: Access, axis: int, indices: Sequence[jax.Array]) -> jax.Array:
    """Where a window is along an axis: with the axes of the array, of one element along those on
    which the place is the same.
    """
    rank = len(window.array.shape)
    if window.op.name == "slice":
        extent = window.window[axis]
        assert extent.start is not None
        return lax.full((1,) * rank, extent.start.offset, np.int32)
    if not has_numbers(window.op):
        return lax.reshape(indices[axis], (1,) * rank)
    (index,), rows = indices, batch(window)
    start = lax.index_in_dim(index, window.component(axis), index.ndim - 1, keepdims=False)
    axes = [axis for axis, _ in rows]
    short = lax.reshape(start, [index.shape[d] for _, d in rows])
    moved = lax.transpose(short, [int(d) for d in np.argsort(axes)])
    shape = [window.array.shape[d] if d in axes else 1 for d in range(rank)]
    return lax.reshape(moved, shape)
