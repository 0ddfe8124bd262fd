"""Parts of an array that are put together again: windows of it, some of them written to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.moves import keeps_order
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.analysis.windows.window_primitives import WRITES
from jaxpr_opt.bridge.parameters import dimension_of, padding_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Region, Scan, Value, While
from jaxpr_opt.ir.traits import SUMS

STACKING = frozenset({"concatenate", "stack", *SUMS})
"""What puts parts together: also a sum of them, each in zeros where the others are."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A window of an array at a known place, after writes: elements in row-major order."""

    read: Access
    writes: tuple[Access, ...]
    """What is written to it, last to first."""
    starts: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts side by side: together one window of the array."""

    each: tuple[Part, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def array(self) -> Value:
        """The array of which all parts are windows."""
        return self.each[0].read.array


def put_parts(op: Op) -> Parts | None:
    """The parts of an array that an op puts together, where they are all of it."""
    region = op.region
    found = _stacked(op, region, limits.WRITES_IN_A_ROW) if region is not None else None
    # Condition 1 of put-parts-back.
    if found is None or not found.array.shape == found.sizes == op.result.shape:
        return None
    return found


def _stacked(op: Op, region: Region, levels: int) -> Parts | None:
    """The parts that an op puts together, maybe of parts that are put together."""
    side_by_side = pieces(op)
    if side_by_side is None or op.region is not region or not levels:
        return None
    values, axis = side_by_side
    parts: list[Parts] = []
    for value in values:
        found = _parts(value, region, levels - 1)
        if found is None or (parts and found.array is not parts[0].array):
            return None
        parts.append(found)
    before = prod(values[0].shape[:axis])
    return _side_by_side(parts, before)


def pieces(op: Op) -> tuple[Sequence[Value], int] | None:
    """What an op puts side by side, and along which axis; None if it does not."""
    if op.name not in SUMS:
        return (op.operands, dimension_of(op)) if op.name in STACKING else None
    found: list[tuple[int, Value]] = []
    axes, pending = set[int](), [*op.operands]
    while pending:
        put = pending.pop().op
        if put is None or put.region is not op.region or len(found) > limits.WRITES_IN_A_ROW:
            return None
        if put.name in SUMS and len(put.result.uses) == 1:
            pending += put.operands
            continue
        if put.name != "pad" or uniform(put.operands[1]) != 0:
            return None
        config = padding_of(put)
        axes |= {d for d, each in enumerate(config) if each != (0, 0, 0)}
        # Condition 3 of put-parts-back.
        if len(axes) != 1 or any(inner for _, _, inner in config):
            return None
        (axis,) = axes
        found.append((config[axis][0], put.operands[0]))
    (axis,) = axes
    found.sort(key=lambda each: each[0])
    end = 0
    for start, part in found:
        # Condition 3 of put-parts-back.
        if start != end:
            return None
        end += part.shape[axis]
    return ([part for _, part in found], axis) if end == op.result.shape[axis] else None


def is_put_back(read: Op, loop: Scan | While) -> bool:
    """Whether a part that a step reads of a carry is put together with others to the next one."""
    nexts = [c.next for c in loop.carries if c.param is read.operands[0]]
    after = nexts[0].op if nexts else None
    side_by_side = None if after is None or after.region is not read.region else pieces(after)
    if side_by_side is None or len(read.result.users) > limits.WRITES_IN_A_ROW:
        return False
    return any(_comes_from(value, read.result) for value in side_by_side[0])


def _comes_from(value: Value, part: Value) -> bool:
    """Whether a value is a part, after writes to it, and after additions."""
    pending, seen = [value], {value}
    for each in pending:
        op = each.op
        if each is part:
            return True
        if op is not None and (op.name in SUMS or op.name in WRITES or keeps_order(op)):
            more = op.operands if op.name in SUMS else op.operands[:1]
            pending += [v for v in more if v not in seen]
            seen.update(more)
    return False


def _parts(value: Value, region: Region, levels: int) -> Parts | None:
    """The window that a value is, after writes, or what it is put together of."""
    writes: list[Access] = []
    for found in _made_of(value):
        value = found
        made = access(value.op) if value.op is not None else None
        if made is None or made.op.region is not region or len(writes) > levels:
            break
        if made.kind == "read":
            starts = _known(made)
            if starts is None:
                return None
            part = Part(made, tuple(writes), starts, made.sizes)
            return Parts((part,), starts, made.sizes)
        writes.append(made)
    if writes or value.op is None:
        return None
    return _stacked(value.op, region, levels)


def _made_of(value: Value) -> Iterator[Value]:
    """A value before it got its shape, and what was written to for it, and so on."""
    while True:
        while value.op is not None and keeps_order(value.op):
            value = value.op.operands[0]
        yield value
        made = access(value.op) if value.op is not None else None
        if made is None or made.kind == "read":
            return
        value = made.array


def _known(read: Access) -> tuple[int, ...] | None:
    """Where a window starts, if its elements are in the order that they have in the array."""
    axes = [axis for axis in read.axes if axis is not None and read.sizes[axis] != 1]
    # Condition 2 of put-parts-back.
    if axes != sorted(axes):
        return None
    starts = [extent.start for extent in read.window]
    # Condition 2 of put-parts-back.
    if not all(start is not None and start.is_constant for start in starts):
        return None
    return tuple(start.offset for start in starts if start is not None)


def _side_by_side(parts: Sequence[Parts], before: int) -> Parts | None:
    """The window that parts are together, if they follow each other along one axis of the array."""
    first, last = parts[0], parts[-1]
    moving = [a for a, (i, j) in enumerate(zip(first.starts, last.starts, strict=True)) if i != j]
    # Condition 3 of put-parts-back.
    if len(moving) != 1:
        return None
    (axis,) = moving
    at = first.starts[axis]
    for each in parts:
        # Condition 3 of put-parts-back.
        if each.starts[axis] != at or _without(each, axis) != _without(first, axis):
            return None
        at += each.sizes[axis]
    # Condition 4 of put-parts-back.
    if before != prod(first.sizes[:axis]):
        return None
    sizes = list(first.sizes)
    sizes[axis] = at - first.starts[axis]
    return Parts(tuple(p for each in parts for p in each.each), first.starts, tuple(sizes))


def _without(part: Parts, axis: int) -> list[tuple[int, int]]:
    places = list(zip(part.starts, part.sizes, strict=True))
    return places[:axis] + places[axis + 1 :]
