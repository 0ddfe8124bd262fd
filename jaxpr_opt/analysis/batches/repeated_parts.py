"""Factors of products that are joined of parts, of which some are the same for many rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from jaxpr_opt.analysis.rows.mapped_reads import Places, places_read
from jaxpr_opt.bridge.parameters import (
    broadcast_dimensions_of,
    dimension_of,
    is_in_order,
    numbers_of,
    repetitions_of,
)
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import source_through
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value, is_sized


@dataclass(frozen=True, slots=True, eq=False)
class JoinedPart:
    """A part of a factor, along the axis that is joined."""

    array: Value
    """Its elements in order, once for all rows that are the same."""
    start: int
    size: int
    shape: tuple[int, ...]
    """Of the part, with one row where all are the same."""
    repeated: tuple[int, ...]
    """The axes along which all rows are the same."""
    read: Places | None = None
    """Where its rows are read of a table that has fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedParts:
    """A product of which a factor has such parts."""

    product: Op
    position: int
    """Of the factor."""
    axis: int
    """Along which it is joined, or would be."""
    groups: list[list[JoinedPart]]
    """Parts that are the same along the same axes."""
    joins: tuple[Op, ...]
    """What joins the parts."""

    @property
    def is_summed(self) -> bool:
        """Whether the product is the sum of those by the groups, or else joined of them."""
        return self.axis in self.contracted

    @property
    def contracted(self) -> tuple[int, ...]:
        """The axes of the factor that are summed up."""
        return tuple(numbers_of(self.product)[0][self.position])

    @property
    def is_added(self) -> bool:
        """Whether the product is the sum of several."""
        return self.is_summed and len(self.groups) > 1

    @property
    def unmade(self) -> int:
        """Bytes that are no longer joined."""
        return sum(op.result.nbytes for op in self.joins if len(op.result.uses) == 1)

    @property
    def multiplied(self) -> float:
        """The part of all multiplications that is left if rows are not repeated."""
        return (
            sum(
                part.size * (part.read.share if part.read else 1) / self.rows(part)
                for each in self.groups
                for part in each
            )
            / self._length
        )

    @property
    def results(self) -> list[int]:
        """How many bytes each group makes."""
        sizes = [
            1 if self.is_summed else sum(part.size for part in each) / self._length
            for each in self.groups
        ]
        return [
            int(self.product.result.nbytes * size / self.rows(each[0], is_made=True))
            for each, size in zip(self.groups, sizes, strict=True)
        ]

    @property
    def summed(self) -> int:
        """How many bytes of the other factor are summed up first, for all groups."""
        sums = sum(bool({*each[0].repeated} & {*self.contracted}) for each in self.groups)
        return int(sums * self.product.operands[1 - self.position].nbytes)

    @property
    def _length(self) -> int:
        return self.product.operands[self.position].shape[self.axis]

    def rows(self, part: JoinedPart, *, is_made: bool = False) -> int:
        """How often each row of a part is in the factor, or what comes of it in the result."""
        shape = self.product.operands[self.position].shape
        return prod(
            shape[axis] for axis in part.repeated if not is_made or axis not in self.contracted
        )


def repeated_parts(product: Op) -> RepeatedParts | None:
    """A factor of which a part is the same for many rows; None if there is none."""
    if not has_known_rows(product):
        return None
    contracted, batch = numbers_of(product)
    for position, factor in enumerate(product.operands):
        for axis in range(len(factor.shape)):
            if axis in batch[position]:
                continue
            joins: list[Op] = []
            parts = [
                _part(value, start, axis, shape, batch[position])
                for value, start, shape in _joined(factor, axis, factor.shape, joins)
            ]
            is_known = len(parts) <= limits.PARTS_OF_A_PRODUCT
            is_joined_here = len(parts) > 1 and all(len(op.result.uses) == 1 for op in joins)
            # Condition 5 of multiply-repeated-rows.
            if is_joined_here and axis in contracted[position]:
                parts = [_read_part(each, product, axis, factor.shape[axis]) for each in parts]
            if is_known and any(part.repeated or part.read for part in parts):
                found = RepeatedParts(product, position, axis, [], tuple(joins))
                found.groups.extend(_groups(parts, any_order=found.is_summed))
                return found
    return None


def _part(
    value: Value, start: int, joined: int, shape: tuple[int, ...], batch: Sequence[int]
) -> JoinedPart:
    found = _spread(value, shape)
    # Condition 1 of multiply-repeated-rows.
    is_known = found is not None and not {joined, *batch} & {*found[1]}
    array, axes = found if found is not None and is_known else (value, ())
    rows = tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    return JoinedPart(array, start, shape[joined], rows, axes)


def _read_part(part: JoinedPart, product: Op, joined: int, length: int) -> JoinedPart:
    """A part, with where it is read of a table, if the product of all rows of that takes clearly
    less time.
    """
    read, made = part.array.op, product.result.nbytes
    at = places_read(read) if read is not None and read.region is product.region else None
    # Condition 5 of multiply-repeated-rows.
    if at is None or read is None or part.repeated or len(read.result.uses) > 1:
        return part
    # Condition 5 of multiply-repeated-rows.
    if joined not in numbers_of(read).offset_dims or read.result.shape != part.shape:
        return part
    share, unread, marked = at.share, read.result.nbytes, at.index.size
    is_less = cost_model().is_less_read(product, part.size / length, share, unread, marked)
    return replace(part, read=at) if is_less and share * made <= unread else part


def _groups(parts: Sequence[JoinedPart], *, any_order: bool) -> list[list[JoinedPart]]:
    """Parts that are the same along the same axes; neighbours only, unless any order will do."""
    found: list[list[JoinedPart]] = []
    for part in parts:
        known = found if any_order else found[-1:]
        group = next((each for each in known if each[0].repeated == part.repeated), None)
        if group is None or part.read or group[0].read:
            found.append(group := [])
        group.append(part)
    return found


def _joined(
    value: Value, axis: int, shape: tuple[int, ...], joins: list[Op], start: int = 0
) -> Iterator[tuple[Value, int, tuple[int, ...]]]:
    """Parts that are joined along an axis of an array of such a shape, however nested; where each
    starts, and its shape.
    """
    op = (source := source_through(value, is_reshaping)).op
    is_joined = op is not None and op.name == "concatenate"
    along = dimension_of(op) if op is not None and is_joined else None
    if (
        along is None
        or len(joins) == limits.PARTS_OF_A_PRODUCT
        or not is_same_axis(source.shape, along, shape, axis)
    ):
        yield value, start, shape
        return
    assert op is not None
    joins.append(op)
    for part in op.operands:
        size = part.shape[along]
        yield from _joined(part, axis, (*shape[:axis], size, *shape[axis + 1 :]), joins, start)
        start += size


def is_reshaping(op: Op) -> bool:
    """Whether an op gives an array another shape, its elements in order."""
    return op.name == "squeeze" or (op.name == "reshape" and is_in_order(op))


def is_same_axis(shape: Sequence[int], axis: int, other: Sequence[int], other_axis: int) -> bool:
    """Whether elements in order lie along the same axis in two shapes."""
    before, after = prod(shape[:axis]), prod(other[:other_axis])
    return before == after and shape[axis] == other[other_axis]


def joined_parts(factor: Value, axis: int) -> Iterator[tuple[Value, tuple[int, ...]]]:
    """The parts that are joined along an axis of a factor, and their shapes."""
    return ((value, shape) for value, _, shape in _joined(factor, axis, factor.shape, []))


def _spread(value: Value, shape: Sequence[int]) -> tuple[Value, tuple[int, ...]] | None:
    """What an array of such a shape repeats, and along which of its axes."""
    op = source_through(value, is_reshaping).op
    sizes = None if op is None else sizes_repeated(op)
    if op is None or sizes is None:
        return None
    source = op.operands[0]
    axes = tuple(axis for axis in range(len(shape)) if aligned(shape, axis, sizes))
    kept = prod(n for axis, n in enumerate(shape) if axis not in axes)
    return (source, axes) if axes and source.size == kept else None


def sizes_repeated(op: Op) -> list[tuple[int, bool]] | None:
    """The sizes of what an op repeats, of axes that are in order, and whether along each all is the
    same; None if it repeats nothing.
    """
    if op.name not in {"broadcast_in_dim", "tile"} or len(op.operands) != 1:
        return None
    (source,), shape = op.operands, op.result.shape
    if op.name == "tile":
        pairs = zip(repetitions_of(op), source.shape, strict=True)
        return [each for times, n in pairs for each in ((times, True), (n, False))]
    rows = dict(zip(broadcast_dimensions_of(op), source.shape, strict=True))
    return [(n, rows.get(axis, 1) != n) for axis, n in enumerate(shape)]


def axes_within(
    shape: Sequence[int], axis: int, sizes: Sequence[tuple[int, bool]]
) -> list[tuple[int, bool]] | None:
    """Of which axes, of such sizes, an axis of a shape is; None if it is of parts of them."""
    start, end, place = prod(shape[:axis]), prod(shape[: axis + 1]), 1
    found: list[tuple[int, bool]] = []
    reached = start
    for n, is_marked in sizes:
        if n > 1 and start <= place < end:
            if place != reached:
                return None
            found.append((n, is_marked))
            reached = place * n
        place *= n
    return found if reached == end else None


def aligned(shape: Sequence[int], axis: int, sizes: Sequence[tuple[int, bool]]) -> bool:
    """Whether an axis of a shape is one, or several, of axes of such sizes that are all marked."""
    found = axes_within(shape, axis, sizes)
    return bool(found) and all(is_marked for _, is_marked in found or ())


def has_known_rows(product: Op) -> bool:
    """Whether factors and result have elements, and how many is known, and no type says where."""
    values = *product.operands, product.result
    return all(not is_sharded(v) and is_sized(v.shape) and v.size for v in values)
