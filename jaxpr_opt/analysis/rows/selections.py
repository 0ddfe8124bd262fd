"""Reads of some rows of an array: a slice, one in each row of a batch, rows at several places, or
elements of several axes at several places.

What they have in common: along some axes they read a part, the same whatever the other axes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.bridge.dtypes import is_of_bytes
from jaxpr_opt.bridge.parameters import fills, numbers_of, slice_sizes_of
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value, is_sized


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """`op` reads a part of `array` along some axes."""

    op: Op
    array: Value
    sizes: dict[int, int]
    """The axes of which it reads a part, and of how many elements."""
    batch: tuple[int, ...] = ()
    """The axes along each row of which it reads a part at another place."""
    picks: bool = False
    """Whether it picks elements of one axis, at several places."""
    points: int = 0
    """At how many places it reads one element of each of these axes, each place by itself; or 0."""

    @property
    def indices(self) -> tuple[Value, ...]:
        """The operands that say where."""
        return self.op.operands[1:]


def selection(op: Op) -> Selection | None:
    """The part of its first operand that an op reads along some axes; None if it reads none."""
    rule = _RULES.get(op.name)
    if rule is None or any(map(is_sharded, op.operands)) or not is_sized(op.operands[0].shape):
        return None
    found = rule(op)
    return found if found is not None and found.sizes else None


def _slice(op: Op) -> Selection | None:
    read = access(op)
    return None if read is None else Selection(op, read.array, _narrowed(read))


def _gather(op: Op) -> Selection | None:
    read, numbers = access(op), numbers_of(op)
    # Condition 1 of compute-read-rows.
    if fills(op):
        return _points(op)
    if read is None:
        return _picked(op) or _points(op)
    of_index = list(numbers.start_indices_batching_dims)
    batch = tuple(numbers.operand_batching_dims)
    in_order = of_index == sorted(of_index)
    return Selection(op, read.array, _narrowed(read), batch) if in_order else None


def _narrowed(read: Access) -> dict[int, int]:
    sizes = zip(read.sizes, read.array.shape, strict=True)
    return {axis: size for axis, (size, n) in enumerate(sizes) if size < n}


def _picked(op: Op) -> Selection | None:
    """A gather of whole rows along one axis, which is where the places are in the result."""
    numbers, (array, index) = numbers_of(op), op.operands
    # Condition 1 of compute-read-rows.
    if len(numbers.start_index_map) != 1 or len(index.shape) != 2:
        return None
    (axis,) = numbers.start_index_map
    others = tuple(each for each in range(len(array.shape)) if each != axis)
    whole = tuple(1 if each == axis else n for each, n in enumerate(array.shape))
    # Condition 1 of compute-read-rows.
    if tuple(numbers.offset_dims) != others or slice_sizes_of(op) != whole:
        return None
    return Selection(op, array, {axis: index.shape[0]}, picks=True)


def _points(op: Op) -> Selection | None:
    """A gather of one element along each axis that its index counts, and along those of a batch."""
    numbers, (array, index) = numbers_of(op), op.operands
    sizes, of_index = slice_sizes_of(op), tuple(numbers.start_index_map)
    single = (*of_index, *numbers.operand_batching_dims)
    # Condition 1 of compute-read-rows.
    is_element = all(sizes[axis] == 1 for axis in of_index)
    others = (a for a in range(len(array.shape)) if a not in single)
    if not is_element or any(sizes[axis] != array.shape[axis] for axis in others):
        return None
    if not is_of_bytes(array.dtype) or not is_sized(index.shape):
        return None
    return Selection(op, array, dict.fromkeys(single, 1), points=prod(index.shape[:-1]))


_RULES = {"dynamic_slice": _slice, "gather": _gather, "slice": _slice}
