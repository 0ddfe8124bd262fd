"""The arrays that the rows of an array come from, along one axis, through ops that cut and join
rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jaxpr_opt.analysis.values.moves import keeps_order
from jaxpr_opt.analysis.values.renaming import is_noop_cast
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.bridge.parameters import (
    dimension_of,
    padding_of,
    sizes_of,
)
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Value


class SourceRows(NamedTuple):
    """Rows `start` to ``start + size`` of an array, with all its other axes.

    The array may be without axes of one; then these are all of its elements. Or it is a number, and
    they are that number.
    """

    array: Value
    start: int
    size: int


def pieces(array: Value, axis: int) -> tuple[SourceRows, ...]:
    """The rows of other arrays that an array consists of, in order."""
    joined: list[SourceRows] = []
    for piece in _followed(SourceRows(array, 0, array.shape[axis]), axis):
        last = joined[-1] if joined else None
        if last and (last.array, last.start + last.size) == piece[:2]:
            joined[-1] = SourceRows(last.array, last.start, last.size + piece.size)
        else:
            joined.append(piece)
    return tuple(joined)


def _followed(piece: SourceRows, axis: int) -> tuple[SourceRows, ...]:
    return _rows(*piece, axis)


@remembered
def _rows(array: Value, start: int, size: int, axis: int) -> tuple[SourceRows, ...]:
    return tuple(_sources(SourceRows(array, start, size), axis))


def _sources(piece: SourceRows, axis: int) -> Iterator[SourceRows]:
    array, start, size = piece
    op = array.op
    if op is None:
        yield piece
    elif (same := _same_shape(array)) is not None:
        yield from _followed(SourceRows(same, start, size), axis)
    elif op.name == "split" and dimension_of(op) == axis:
        before = sum(sizes_of(op)[: array.position])
        yield from _followed(SourceRows(op.operands[0], before + start, size), axis)
    elif op.name == "concatenate" and dimension_of(op) == axis:
        first = 0
        for operand in op.operands:
            rows = SourceRows(operand, 0, operand.shape[axis])
            for each in _common(piece, rows, first):
                yield from _followed(each, axis)
            first += rows.size
    elif op.name == "pad" and _pads_rows(op, axis):
        yield from _padded(piece, op, axis)
    elif op.name == "stack" and dimension_of(op) == axis:
        shape = (*array.shape[:axis], 1, *array.shape[axis + 1 :])
        for operand in op.operands[start : start + size]:
            same = next((v for v in unshaped(operand) if v.shape == shape), None)
            rows = SourceRows(operand if same is None else same, 0, 1)
            yield from (rows,) if same is None else _followed(rows, axis)
    else:
        yield from _in_window(piece, axis)


def _in_window(piece: SourceRows, axis: int) -> Iterator[SourceRows]:
    """Rows of what reads or writes whole rows at a fixed place."""
    known = access(piece.array.op) if piece.array.op is not None else None
    if known is None or (at := _start(known, axis)) is None:
        yield piece
    elif known.kind == "read" and _is_unmoved(known):
        yield from _followed(SourceRows(known.array, at + piece.start, piece.size), axis)
    elif known.kind == "write":
        yield from _written(piece, known, axis, at)
    else:
        yield piece


def _written(piece: SourceRows, known: Access, axis: int, at: int) -> Iterator[SourceRows]:
    """The rows of an array that an op has written others to."""
    rows, end = known.sizes[axis], at + known.sizes[axis]
    for each in _common(piece, SourceRows(known.array, 0, at), 0):
        yield from _followed(each, axis)
    for each in _common(piece, SourceRows(known.value, 0, rows), at):
        if _is_unmoved(known):
            yield from _followed(each, axis)
        elif each.size == rows and _is_in_order(known):
            yield each
        else:
            yield SourceRows(piece.array, at + each.start, each.size)
    for each in _common(piece, SourceRows(known.array, end, piece.array.shape[axis] - end), end):
        yield from _followed(each, axis)


def _pads_rows(op: Op, axis: int) -> bool:
    """Whether a pad adds or drops rows only."""
    config = padding_of(op)
    # Condition 1 of stack-entering-rows.
    return all(not any(each) for d, each in enumerate(config) if d != axis) and not config[axis][2]


def _padded(piece: SourceRows, op: Op, axis: int) -> Iterator[SourceRows]:
    """The rows of an array between rows of one number."""
    (array, number), (low, high, _) = op.operands, padding_of(op)[axis]
    kept = SourceRows(array, max(-low, 0), array.shape[axis] + min(low, 0) + min(high, 0))
    behind = SourceRows(number, 0, max(high, 0))
    for each in _common(piece, SourceRows(number, 0, max(low, 0)), 0):
        yield each._replace(start=0)
    for each in _common(piece, kept, max(low, 0)):
        yield from _followed(each, axis)
    for each in _common(piece, behind, max(low, 0) + kept.size):
        yield each._replace(start=0)


def _common(wanted: SourceRows, there: SourceRows, first: int) -> Iterator[SourceRows]:
    """The rows of `wanted` that `there` holds, which are at `first`."""
    low = max(wanted.start, first)
    high = min(wanted.start + wanted.size, first + there.size)
    if low < high:
        yield SourceRows(there.array, there.start + low - first, high - low)


def _start(known: Access, axis: int) -> int | None:
    """Where the rows begin that an op reads or writes, if these are whole rows at a fixed place."""
    # Condition 1 of stack-entering-rows.
    if not all(extent.start is not None and extent.start.is_constant for extent in known.window):
        return None
    others = zip(known.sizes, known.array.shape, strict=True)
    # Condition 1 of stack-entering-rows.
    if any(size != n for at, (size, n) in enumerate(others) if at != axis):
        return None
    start = known.window[axis].start
    return None if start is None else start.offset


def _is_unmoved(known: Access) -> bool:
    """Whether what is read or written has the axes of the array."""
    # Condition 1 of stack-entering-rows.
    return known.axes == tuple(range(len(known.array.shape)))


def _is_in_order(known: Access) -> bool:
    """Whether it has them in their order, but for some of one."""
    axes = [axis for axis in known.axes if axis is not None]
    # Condition 1 of stack-entering-rows.
    return axes == sorted(axes)


def unshaped(array: Value) -> Iterator[Value]:
    """An array, and the arrays it is a reshape of."""
    yield array
    while (op := array.op) is not None and has_same_elements(op):
        array = op.operands[0]
        yield array


def _same_shape(array: Value) -> Value | None:
    """The source of an array that ops reshape and bring back to its shape, if any."""
    _, *others = unshaped(array)
    return next((value for value in others if value.shape == array.shape), None)


def has_same_elements(op: Op) -> bool:
    """Whether an op makes an array of the same elements in the same order."""
    return is_noop_cast(op) or keeps_order(op)
