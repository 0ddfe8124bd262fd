"""A window within a window: an op that writes to what is then written to a larger array."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.analysis.sparse.disjoint_pieces import apart
from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.analysis.values.moves import keeps_order
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Value


@dataclass(frozen=True, slots=True, eq=False)
class Nested:
    """`outer` writes to an array the window that `read` has read and `inner` has written to."""

    read: Access
    inner: Access
    outer: Access
    before: tuple[Op, ...]
    """What gives the window that is read the shape of what `inner` writes to, first to last."""

    @property
    def place(self) -> dict[int, int]:
        """For each axis of what is written to, longer than 1, the axis of the array that it is."""
        inner = _long(self.inner.array.shape)
        # Condition 3 of write-to-whole-arrays.
        return dict(zip(inner, _long_axes(self.read), strict=True))

    @property
    def narrowed(self) -> set[int]:
        """The axes along which the window that is put back is a part of the array."""
        sizes = zip(self.outer.sizes, self.outer.array.shape, strict=True)
        return {axis for axis, (size, n) in enumerate(sizes) if size != n}

    @property
    def is_in_order(self) -> bool:
        """Whether the array's axes keep their order in what is read, written to, and written."""
        # Condition 3 of write-to-whole-arrays.
        axes = _long_axes(self.read)
        return axes == sorted(axes) and axes == _long_axes(self.outer)


def nested(outer: Access) -> Nested | None:
    """The write into a window that is then written back where it was read, if any."""
    if outer.kind != "write":
        return None
    _, value = _moves(outer.value)
    inner = access(value.op) if value.op is not None else None
    if inner is None or inner.kind == "read" or inner.op.region is not outer.op.region:
        return None
    before, value = _moves(inner.array)
    read = access(value.op) if value.op is not None else None
    if read is None or read.kind != "read" or read.op.region is not outer.op.region:
        return None
    if not _is_same(read, outer):
        return None
    return Nested(read, inner, outer, tuple(reversed(before)))


def _moves(value: Value) -> tuple[list[Op], Value]:
    """The ops that only reshape a value, and the value before them."""
    moves: list[Op] = []
    while value.op is not None and keeps_order(value.op):
        moves.append(value.op)
        value = value.op.operands[0]
    return moves, value


def _is_same(read: Access, write: Access) -> bool:
    """Whether what is read is what is there, when it is written, in range or clamped alike."""
    # Condition 1 of write-to-whole-arrays.
    if read.sizes != write.sizes or read.array.shape != write.array.shape:
        return False
    # Condition 1 of write-to-whole-arrays.
    if not all(_starts_alike(read, write, axis) for axis in range(len(read.sizes))):
        return False
    # Condition 2 of write-to-whole-arrays.
    return any(array is read.array for array in _unchanged(write))


def _starts_alike(read: Access, write: Access, axis: int) -> bool:
    here, there = read.window[axis].start, write.window[axis].start
    if here is not None and there is not None:
        # Condition 1 of write-to-whole-arrays.
        return here.steps == there.steps and here.offset == there.offset
    # Condition 1 of write-to-whole-arrays.
    if (read.op.name, write.op.name) != ("dynamic_slice", "dynamic_update_slice"):
        return False
    return same_expression(read.indices[axis], write.indices[axis], {})


def _unchanged(write: Access) -> Iterator[Value]:
    """Arrays that are, in the window, what is written to."""
    array = write.array
    yield array
    for _ in range(limits.WRITES_IN_A_ROW):
        made = access(array.op) if array.op is not None else None
        # Condition 2 of write-to-whole-arrays.
        if made is None or made.kind == "read" or not apart(made.window, write.window):
            return
        array = made.array
        yield array


def _long(shape: tuple[int, ...]) -> list[int]:
    return [axis for axis, size in enumerate(shape) if size != 1]


def _long_axes(window: Access) -> list[int]:
    """The axes of the array that the axes of the value longer than 1 are, in their order."""
    return [axis for axis in window.axes if axis is not None and window.sizes[axis] != 1]
