"""Ops of which a loop computes no numbers together: it finds each by a jump, or by its place.

A loop over a row computes several numbers at once if they lie beside each other. Which part of a
concatenation a number is in is a jump, and so is whether it lies behind what a pad puts around. The
place of a number in an array whose axes are merged is a quotient and a remainder: LLVM sees that
such numbers lie beside each other if it divides, but not if it shifts, by a power of two.
"""

from __future__ import annotations

from jaxpr_opt.bridge.parameters import dimension_of, padding_of, strides_of
from jaxpr_opt.cost.fusion import is_fused
from jaxpr_opt.ir.graph import Op, Value, is_sized
from jaxpr_opt.ir.traits import rearranges


def fills_behind(op: Op) -> bool:
    """Whether an op puts a filler behind an array, not only before it."""
    return op.name == "pad" and any(high > 0 for _, high, _ in padding_of(op))


def joins_parts(op: Op, *, turns: bool) -> bool:
    """Whether an op puts several parts beside each other; those of one array, which is turned, only
    if a device takes jumps for these, too.
    """
    if op.name != "concatenate":
        return False
    axis = dimension_of(op)
    parts = [part for part in op.operands if part.shape[axis] > 1]
    return len(parts) > 1 and (turns or len({_whole(part) for part in parts}) > 1)


def _whole(part: Value) -> Value:
    return part.op.operands[0] if part.op is not None and part.op.name == "slice" else part


def merges_axes(op: Op, *, shifts: bool) -> bool:
    """Whether the rows of what a reshape makes are of several axes, of numbers that do not lie
    beside each other; or may not be seen to, as places are found by a shift.
    """
    if op.name != "reshape" or not is_sized(op.operands[0].shape) or not op.result.shape:
        return False
    merged = _merged(op)
    if len(merged) < 2:
        return False
    if shifts and any(not n & (n - 1) for n in merged[1:]):
        return True
    return not _lies_together(op.operands[0], op)


def _merged(reshape: Op) -> list[int]:
    """The axes of an array that are a row of it, reshaped; none if a row is a part of one."""
    row, merged = reshape.result.shape[-1], list[int]()
    for n in reversed(reshape.operands[0].shape):
        if row == 1:
            break
        if row % n:
            return []
        row //= n
        merged[:0] = [n] * (n > 1)
    return merged if row == 1 else []


def _lies_together(value: Value, reader: Op) -> bool:
    """Whether the numbers of an array lie beside each other where a fusion reads them."""
    op = value.op
    if op is None or op.region is not reader.region or not is_fused(op):
        return True
    if op.name in {"reshape", "squeeze"}:
        return _lies_together(op.operands[0], reader)
    if op.name == "slice":
        return _is_run(op) and all(n == 1 for n in strides_of(op))
    if op.name == "dynamic_slice":
        return _is_run(op)
    return not rearranges(op)


def _is_run(window: Op) -> bool:
    """Whether a window is of whole rows: after the first axis of several numbers it has all."""
    taken, whole = window.result.shape, window.operands[0].shape
    first = next((axis for axis, n in enumerate(taken) if n > 1), len(taken))
    return taken[first + 1 :] == whole[first + 1 :]
