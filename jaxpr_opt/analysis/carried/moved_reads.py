"""Windows of arrays that ops move, and from which arrays, at which places, these are.

A window of `pad`, `rev` or `concatenate` of an array is a window of that array, at a place that can
be computed: of what is put together, one of each, of which one is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxpr_opt.analysis.carried.buffers import is_updated_in
from jaxpr_opt.analysis.rows.row_axes import axis_of_operand
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.values.induction import bounds
from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.analysis.windows.reshaped import reshaped_window
from jaxpr_opt.analysis.windows.window_primitives import CLIP, UPDATING, indexed_axes
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    dimension_of,
    filled_by,
    fills,
    is_in_order,
    is_resharded,
    mode_of,
    numbers_of,
    padding_of,
    slice_sizes_of,
    strides_of,
)
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value, is_sized
from jaxpr_opt.ir.nesting import phase_of
from jaxpr_opt.ir.traits import ELEMENTWISE

MOVES = frozenset({
    "broadcast_in_dim", "concatenate", "dynamic_slice", "pad", "reshape", "rev", "slice", "split",
    "squeeze", "stack", "transpose", "unstack",
})  # fmt: skip
"""Ops whose results have elements of their operands, or one number."""

READING = frozenset({"dynamic_slice", "gather", "slice"})

_TAKEN_APART = frozenset({"concatenate", "stack", "unstack"})


@dataclass(frozen=True, slots=True, eq=False)
class MovedRead:
    """`read` reads windows of what `move` makes."""

    read: Op
    move: Op
    array: Value
    """The result of `move` that is read."""
    sizes: tuple[int, ...]
    """Of a window, along all axes of the array."""
    fill: Any
    """The number that is read at a place that is out of range; None for the nearest window."""
    parts: tuple[Value, ...]
    """What is read instead: the operands of `move`, or the one array of which these are slices."""
    rows: tuple[tuple[int, ...], ...]
    """For each part, its axes that are those of a batch of which each row is read at a place of its
    own.
    """
    shape: tuple[int, ...]
    """The shape of the array, with one row of the batch."""


def moved_read(read: Op) -> MovedRead | None:
    """What a read of moved elements reads of the operands; None if that is no window of them."""
    array = read.operands[0] if read.operands else None
    move = array.op if array is not None else None
    if array is None or move is None or read.name not in READING or move.name not in MOVES:
        return None
    values = (*read.results, *read.operands, *move.operands)
    if any(map(is_sharded, values)) or is_resharded(move) or not dtypes.is_array(array.dtype):
        return None
    is_known = all(is_sized(v.shape) and 0 not in v.shape for v in values)
    # Condition 2 of read-before-moving.
    if not is_known or max(v.size for v in move.operands) >= limits.COUNTED:
        return None
    if read.name == "slice" and any(stride != 1 for stride in strides_of(read)):
        return None
    batch: tuple[int, ...] = ()
    fill = None
    if read.name == "gather":
        batch, fill = tuple(numbers_of(read).operand_batching_dims), filled_by(read)
        # Condition 2 of read-before-moving.
        if fill is None or not _is_defined(read):
            return None
        fill = fill if fills(read) else None
    rows = list[tuple[int, ...]]()
    for position, operand in enumerate(move.operands):
        its = [axis_of_operand(move, position, d) for d in batch] if operand.shape else []
        # Condition 3 of read-before-moving.
        if None in its:
            return None
        rows.append(tuple(d for d in its if d is not None))
    shape = tuple(1 if d in batch else n for d, n in enumerate(array.shape))
    sizes = read.result.shape if read.name == "slice" else slice_sizes_of(read)
    parts = move.operands
    if move.name == "concatenate" and sizes[dimension_of(move)] == 1:
        whole = {_whole(part, dimension_of(move)) for part in parts}
        if len(whole) == 1 and None not in whole:
            parts, rows = tuple(v for v in whole if v is not None), rows[:1]
    found = MovedRead(read, move, array, sizes, fill, parts, tuple(rows), shape)
    return found if _is_a_window(found) else None


def _is_defined(gather: Op) -> bool:
    """Whether its derivatives are those of a window wherever it reads: of a window that is promised
    to be in range, and is not, JAX has a forward derivative, but none backwards.
    """
    if fills(gather) or mode_of(gather) == CLIP or phase_of(gather) != "differentiable":
        return True
    known, (array, index) = access(gather), gather.operands
    if known is not None and known.is_located:
        return True
    place, sizes = bounds(index), slice_sizes_of(gather)
    last = min(array.shape[axis] - sizes[axis] for axis in indexed_axes(gather))
    return place is not None and place[0] >= 0 and place[1] <= last


def _whole(part: Value, axis: int) -> Value | None:
    """The array of which a value is a slice along one axis only."""
    op = part.op
    if op is None or op.name != "slice":
        return part
    array = op.operands[0]
    pairs = enumerate(zip(part.shape, array.shape, strict=True))
    is_whole = all(a == b for d, (a, b) in pairs if d != axis)
    return array if is_whole and all(stride == 1 for stride in strides_of(op)) else None


def _is_a_window(found: MovedRead) -> bool:
    """Whether a window is one of each operand, or put together of such."""
    move, sizes = found.move, found.sizes
    pairs = zip(found.shape, sizes, strict=True)
    if all(n <= limits.AROUND_A_WINDOW * size for n, size in pairs):
        return False  # a window that is moved within a few others
    # Condition 1 of read-before-moving.
    if (
        move.name in _TAKEN_APART
        and max(map(len, (move.operands, move.results))) > limits.READS_OF_ROWS
    ):
        return False
    if move.name == "stack":
        return sizes[dimension_of(move)] in {1, len(move.operands)}
    if move.name == "pad":
        return all(min(low, high, inner) == inner == 0 for low, high, inner in padding_of(move))
    if move.name == "slice":
        return all(stride == 1 for stride in strides_of(move))
    if move.name in {"reshape", "squeeze"}:
        is_plain = move.name == "squeeze" or is_in_order(move)
        return is_plain and reshaped_window(found.shape, found.sizes, of_reshape(found)) is not None
    return True


def of_reshape(found: MovedRead) -> tuple[int, ...]:
    """The shape of what is reshaped, with one row of the batch."""
    shape = found.parts[0].shape
    return tuple(1 if d in found.rows[0] else n for d, n in enumerate(shape))


def updated_buffer(move: Op) -> Value | None:
    """A buffer that the loop around updates in place, of which an op moves elements."""
    loop = loop_of(move)
    if loop is None:
        return None
    updated = {
        carry.param
        for carry in loop.carries
        if carry.next is not carry.param and is_updated_in(carry.next, loop)
    }
    pending, seen = [*move.operands], set(move.operands)
    for value in pending:
        op = value.op
        is_version = op is not None and op.name in UPDATING and is_updated_in(value, loop)
        if value in updated or is_version:
            return value
        if op is None or not loop.body.contains(op.region) or op.name not in MOVES | ELEMENTWISE:
            continue
        is_window = op.name == "dynamic_slice" and op.result.size < op.operands[0].size
        if not is_window:  # what it reads is small already
            pending += [v for v in op.operands if v not in seen]
            seen.update(op.operands)
    return None
