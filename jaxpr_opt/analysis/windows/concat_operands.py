"""The operand of a concatenation that a slice or a window of the result lies in.

`part(op)` follows a slice through transposes and changes of weak type to a concatenation, and to
the one operand that contains all of it; also a window whose index has a known range.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax import lax

from jaxpr_opt.analysis.values.renaming import is_noop_cast
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.bridge.parameters import (
    dimension_of,
    limits_of,
    permutation_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.bridge.slicing import read_window
from jaxpr_opt.ir.dataflow import source_through
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.traits import VIEWING

_ROW_MOVES = VIEWING - {"broadcast_in_dim"}  # a repeated row is no row of a loop


@dataclass(frozen=True, slots=True)
class OperandSlice:
    """A slice of `array`, which is one operand of a concatenation."""

    array: Value
    bounds: tuple[slice, ...]
    """What the slice takes of it along each axis."""
    order: tuple[int, ...]
    """Which axis of the array is which axis of what is read."""
    path: tuple[Op, ...]
    """The ops from the slice to the concatenation, which is the last."""

    def read(self, array: jax.Array) -> jax.Array:
        """The value of the slice."""
        starts, limits, strides = zip(
            *((b.start, b.stop, b.step) for b in self.bounds), strict=True
        )
        return lax.transpose(lax.slice(array, starts, limits, strides), self.order)


@dataclass(frozen=True, slots=True)
class OperandWindow:
    """A window of `array`, which is one operand of a concatenation, at an index that varies."""

    array: Value
    access: Access
    axis: int
    """The axis of what is read along which the concatenation puts its operands together."""
    offset: int
    """Where the array begins in that."""
    order: tuple[int, ...]
    """Which axis of the array is which axis of what is read."""
    path: tuple[Op, ...]
    """The ops from the read to the concatenation, which is the last."""

    def read(self, array: jax.Array, *indices: jax.Array) -> jax.Array:
        """The part of the window that is read."""
        starts, sizes = self.access.starts(*indices), self.access.sizes
        starts[self.axis] = starts[self.axis] - self.offset
        back = [self.order.index(axis) for axis in range(len(sizes))]
        window = read_window(array, [starts[d] for d in back], [sizes[d] for d in back])
        return self.access.from_window(lax.transpose(window, self.order))


def part(op: Op) -> OperandSlice | OperandWindow | None:
    """The part of a concatenation that what is read lies in; None if it is in no single one."""
    read = access(op)
    if read is None or read.kind != "read":
        return _sliced(op)
    return _sliced(op) or _indexed(read)


def _indexed(read: Access) -> OperandWindow | None:
    value, path, order = read.array, [read.op], tuple(range(len(read.window)))
    while (made := value.op) is not None and (made.name == "transpose" or is_noop_cast(made)):
        if made.name == "transpose":
            permutation = permutation_of(made)
            order = tuple(permutation[axis] for axis in order)
        path.append(made)
        value = made.operands[0]
    if made is None or made.name != "concatenate" or not read.is_located:
        return None
    dimension, offset = dimension_of(made), 0
    axis = order.index(dimension)
    extent = read.window[axis]
    assert extent.start is not None
    low, high = extent.start.range(())
    for operand in made.operands:
        size = operand.shape[dimension]
        if offset <= low and high + extent.size <= offset + size:
            return OperandWindow(operand, read, axis, offset, order, (*path, made))
        offset += size
    return None


def _sliced(op: Op) -> OperandSlice | None:
    if op.name != "slice" or not op.result.shape or 0 in op.result.shape:
        return None
    value = op.operands[0]
    bounds = [
        slice(*each) for each in zip(starts_of(op), limits_of(op), strides_of(op), strict=True)
    ]
    order, path = tuple(range(len(bounds))), [op]
    while (made := value.op) is not None:
        path.append(made)
        if made.name == "concatenate":
            axis = dimension_of(made)
            for operand in made.operands:
                size, taken = operand.shape[axis], bounds[axis]
                if taken.start >= 0 and taken.stop <= size:
                    return OperandSlice(operand, tuple(bounds), order, tuple(path))
                bounds[axis] = slice(taken.start - size, taken.stop - size, taken.step)
            return None
        if made.name == "transpose":
            permutation = permutation_of(made)
            bounds = [bounds[permutation.index(axis)] for axis in range(len(bounds))]
            order = tuple(permutation[axis] for axis in order)
        elif not is_noop_cast(made):
            return None
        value = made.operands[0]
    return None


def stacked_by(value: Value) -> Scan | None:
    """The loop that stacks what an array shows; None if it is no such array."""
    value = source_through(value, lambda made: made.name in _ROW_MOVES or is_noop_cast(made))
    loop = value.op
    stacks = isinstance(loop, Scan) and any(stack.result is value for stack in loop.stacks)
    return loop if isinstance(loop, Scan) and stacks else None
