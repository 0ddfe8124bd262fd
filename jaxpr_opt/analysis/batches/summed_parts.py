"""Products of which parts are read as sums only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod

from jaxpr_opt.analysis.batches.repeated_parts import (
    aligned,
    has_known_rows,
    is_reshaping,
    is_same_axis,
)
from jaxpr_opt.analysis.rows.row_axes import axis_of_operand
from jaxpr_opt.bridge.parameters import (
    axes_of,
    dimension_of,
    limits_of,
    sizes_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Value


@dataclass(frozen=True, slots=True, eq=False)
class ReadPart:
    """A part of a product, along an axis, that is read by itself."""

    array: Value
    """What is read: the part, or its sum."""
    summed: tuple[int, ...]
    """The axes of the product along which it is summed up."""
    start: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class SummedParts:
    """A product that is read part by part."""

    product: Op
    axis: int
    """Of the product, along which its parts lie."""
    position: int
    """Of the factor whose rows are summed up."""
    parts: list[ReadPart]

    @property
    def multiplied(self) -> float:
        """The part of all multiplications that is left if rows are summed up first."""
        return sum(self._share(part) for part in self.parts)

    @property
    def results(self) -> list[int]:
        """How many bytes are made for each part."""
        return [int(self.product.result.nbytes * self._share(part)) for part in self.parts]

    @property
    def is_added(self) -> bool:
        """Whether the product is the sum of several."""
        return False

    @property
    def summed(self) -> int:
        """How many bytes of the factor are summed up, for all parts."""
        sums = sum(bool(part.summed) for part in self.parts)
        return int(sums * self.product.operands[self.position].nbytes)

    @property
    def unmade(self) -> int:
        """Bytes that are no longer made."""
        return int(self.product.result.nbytes - max(self.results))

    def _share(self, part: ReadPart) -> float:
        shape = self.product.result.shape
        return part.size / shape[self.axis] / prod(shape[axis] for axis in part.summed)


def summed_parts(product: Op) -> SummedParts | None:
    """The parts of a product, of which one at least is read as a sum only; None if none is."""
    if not has_known_rows(product):
        return None
    few = limits.PARTS_OF_A_PRODUCT
    readers, shape = list(islice(_readers(product.result), few + 1)), product.result.shape
    if not shape or len(readers) > few:
        return None
    if len(readers) == 1 and readers[0][0].name == "reduce_sum":
        pieces: list[tuple[Value, int, int]] | None = [(product.result, 0, shape[-1])]
        axis = len(shape) - 1
    else:
        axis = next((a for op, v in readers for a in _cut(op, v, shape)), -1)
        pieces = _pieces(readers, shape, axis)
    if pieces is None:
        return None
    found = []
    for value, start, size in pieces:
        part = (*shape[:axis], size, *shape[axis + 1 :])
        found.append(ReadPart(*_sum(value, part), start, size))
    summed = {each for part in found for each in part.summed}
    for position in range(2):
        others = [axis_of_operand(product, 1 - position, axis) for axis in summed]
        # Condition 3 of multiply-repeated-rows.
        if set(others) == {None}:
            return SummedParts(product, axis, position, found)
    return None


def _readers(value: Value) -> Iterator[tuple[Op, Value]]:
    """The ops that read an array in any shape, and what they read."""
    for op in dict.fromkeys(value.users):
        if is_reshaping(op):
            yield from _readers(op.result)
        else:
            yield op, value


def _cut(op: Op, read: Value, shape: Sequence[int]) -> Iterator[int]:
    """The axis of an array of such a shape along which an op takes parts of it."""
    if op.name == "split":
        cut = [dimension_of(op)]
    elif op.name == "slice" and set(strides_of(op)) == {1}:
        cut = [axis for axis, n in enumerate(op.result.shape) if n < read.shape[axis]]
    else:
        return
    if len(cut) == 1:
        yield from (a for a in range(len(shape)) if is_same_axis(shape, a, read.shape, cut[0]))


def _pieces(
    readers: Sequence[tuple[Op, Value]], shape: Sequence[int], axis: int
) -> list[tuple[Value, int, int]] | None:
    """The parts along an axis that readers take; None if one takes something else."""
    found: list[tuple[Value, int, int]] = []
    for op, read in readers:
        if axis not in _cut(op, read, shape):
            return None
        if op.name == "split":
            start = 0
            for result, size in zip(op.results, sizes_of(op), strict=True):
                found += [(result, start, size)] if result.uses else []
                start += size
        else:
            (along,) = (a for a, n in enumerate(op.result.shape) if n < read.shape[a])
            start = starts_of(op)[along]
            found.append((op.result, start, limits_of(op)[along] - start))
    return found


def only_sum(value: Value) -> list[tuple[int, bool]] | None:
    """The sizes of an array that is read as a sum only, as that reads it, and whether it sums up
    along each axis.
    """
    readers = list(islice(_readers(value), 2))
    if len(readers) != 1 or readers[0][0].name != "reduce_sum":
        return None
    ((op, read),) = readers
    gone = axes_of(op)
    return [(n, axis in gone) for axis, n in enumerate(read.shape)]


def _sum(value: Value, shape: Sequence[int]) -> tuple[Value, tuple[int, ...]]:
    """What is read of a part of such a shape, and along which of its axes that is summed up."""
    sizes = only_sum(value)
    if sizes is None:
        return value, ()
    ((op, _),) = _readers(value)
    axes = tuple(axis for axis in range(len(shape)) if aligned(shape, axis, sizes))
    kept = prod(n for axis, n in enumerate(shape) if axis not in axes)
    return (op.result, axes) if axes and kept == op.result.size else (value, ())
