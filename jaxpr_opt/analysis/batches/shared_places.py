"""Writes of a batch at a place that is the same in all rows, by those rows that do write."""

from __future__ import annotations

from dataclasses import dataclass

from jax import lax

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.selected_cases import spread
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.analysis.windows.window_primitives import indexed_axes
from jaxpr_opt.bridge.parameters import mode_of, numbers_of
from jaxpr_opt.ir.graph import Op, Value


@dataclass(frozen=True, slots=True)
class SharedPlace:
    """A write of one window for each row of a batch, of which some are dropped."""

    write: Access
    place: Value
    """Where all rows write: one number for all components of the index, or one for each."""
    which: Value
    """Whether a row writes: an array of truth values."""
    axes: tuple[int, ...]
    """The axes of the array that those of `which` are."""
    writes_if: bool
    """Which truth value says that a row writes."""


def shared_place(op: Op) -> SharedPlace | None:
    """The one place at which a scatter writes in all rows of a batch that it does not drop."""
    write = access(op)
    # Condition 1 of write-rows-together.
    if write is None or write.array.size == 0:
        return None
    # Condition 1 of write-rows-together.
    if mode_of(op) != lax.GatherScatterMode.FILL_OR_DROP:
        return None
    numbers, index = numbers_of(op), op.operands[1]
    batch = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    selected, axes = spread(index)
    select = selected.op
    if not batch or select is None or select.name != "select_n":
        return None
    which, *cases = select.operands
    root, along = spread(which)
    # Condition 2 of write-rows-together.
    if which.dtype != bool or any(axes[axis] not in batch for axis in along):
        return None
    for place, writes_if in ((cases[0], False), (cases[1], True)):
        shared, varying = spread(place)
        # Condition 2 of write-rows-together.
        if not _is_dropped(cases[not writes_if], write):
            continue
        if all(axes[axis] == len(index.shape) - 1 for axis in varying):
            rows = tuple(batch[axes[axis]] for axis in along)
            return SharedPlace(write, shared, root, rows, writes_if)
    return None


def _is_dropped(index: Value, write: Access) -> bool:
    """Whether a window at such an index is out of range, as one number says that it is."""
    number = uniform(index)
    array, sizes = write.array.shape, write.sizes
    return number is not None and any(
        number > array[axis] - sizes[axis] for axis in indexed_axes(write.op)
    )
