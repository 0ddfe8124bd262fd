"""Sorted arrays of which few elements at one end are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.bridge.parameters import (
    dimension_of,
    dimensions_of,
    keys_of,
    limits_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value, is_sized


@dataclass(frozen=True, slots=True, eq=False)
class SortedRead:
    """A slice of what is sorted."""

    op: Op
    number: int
    """Of the result of the sort."""
    start: int
    end: int
    """Which elements it reads, in the order of the sort."""
    turned: bool
    """Whether it reads them in reverse."""


@dataclass(frozen=True, slots=True, eq=False)
class SortedEnd:
    """A sort of which so many elements at one end are read."""

    sort: Op
    axis: int
    count: int
    at_end: bool
    reads: list[SortedRead]

    @property
    def length(self) -> int:
        """How many elements are sorted in each row."""
        return self.sort.operands[0].shape[self.axis]

    @property
    def first(self) -> int:
        """The first of the elements that may be read."""
        return self.length - self.count if self.at_end else 0


def sorted_end(sort: Op) -> SortedEnd | None:
    """What is read of what is sorted by one array of float32; None unless few at one end are."""
    values = *sort.operands, *sort.results
    if any(is_sharded(v) or not is_sized(v.shape) for v in values):
        return None
    # Condition 1 of take-top-k.
    if keys_of(sort) != 1 or sort.operands[0].dtype != "float32":
        return None
    axis, reads = axis_of_selection(sort), list[SortedRead]()
    for number, result in enumerate(sort.results):
        found = list(_reads(result, axis, number))
        # Condition 2 of take-top-k.
        if any(each is None for each in found):
            return None
        reads += [each for each in found if each is not None]
    if not reads:
        return None
    length = sort.operands[0].shape[axis]
    start, end = min(r.start for r in reads), max(r.end for r in reads)
    at_end = length - start < end
    return SortedEnd(sort, axis, length - start if at_end else end, at_end, reads)


def axis_of_selection(op: Op) -> int:
    """The axis along which a sort sorts, or a selection selects."""
    axis = dimension_of(op)
    return axis if axis >= 0 else axis + len(op.operands[0].shape)


def reads_values_only(op: Op) -> bool:
    """Whether nothing reads the places of the numbers of float32 that an op selects."""
    (array,), (values, places) = op.operands, op.results
    is_known = is_sized(array.shape) and not is_sharded(array) and array.dtype == "float32"
    return is_known and bool(values.uses) and not places.uses


def _reads(
    value: Value, axis: int, number: int, *, turned: bool = False
) -> Iterator[SortedRead | None]:
    """The slices that ops read of a result, in any direction; None for what reads all of it."""
    length = value.shape[axis]
    for op in dict.fromkeys(value.users):
        if op.name == "rev" and dimensions_of(op) == (axis,):
            yield from _reads(op.result, axis, number, turned=not turned)
        elif op.name == "slice" and strides_of(op)[axis] == 1:
            start, end = starts_of(op)[axis], limits_of(op)[axis]
            start, end = (length - end, length - start) if turned else (start, end)
            yield SortedRead(op, number, start, end, turned)
        else:
            yield None
