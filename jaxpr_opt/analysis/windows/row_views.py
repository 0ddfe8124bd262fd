"""Streams that are rows of an existing array, and stacks that become a part of an array."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jax import lax

from jaxpr_opt.bridge.parameters import (
    dimension_of,
    dimensions_of,
    limits_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Op, Scan, Stack, Stream, Value


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of an array: in step `i` that with the number ``sign * i + offset``."""

    array: Value
    sign: int = 1
    offset: int = 0

    def before(self) -> Rows | None:
        """The same rows in what the array was sliced or reversed of (1), for the loop only (2)."""
        op = self.array.op
        # Condition 2 of scan-in-place.
        if op is None or len(self.array.uses) != 1:
            return None
        # Condition 1 of scan-in-place.
        if op.name == "rev" and dimensions_of(op) == (0,):
            return Rows(op.operands[0], -self.sign, self.array.shape[0] - 1 - self.offset)
        # Condition 1 of scan-in-place.
        if op.name == "slice" and _is_of_rows(op):
            return Rows(op.operands[0], self.sign, self.offset + starts_of(op)[0])
        return None

    @property
    def is_counted(self) -> bool:
        """Whether the rows are their own numbers, so that there is nothing to read."""
        op = self.array.op
        return op is not None and op.name == "iota" and len(self.array.shape) == 1

    def number(self, step: jax.Array) -> jax.Array:
        """That of the row of a step."""
        number = step if self.sign > 0 else lax.neg(step)
        return lax.add(number, np.int32(self.offset)) if self.offset else number


@dataclass(frozen=True, slots=True)
class Place:
    """An array that is put together, and the number of the first row of a part of it."""

    whole: Op
    offset: int


def rows_of_stream(stream: Stream, scan: Scan) -> Rows | None:
    """Which rows of an array that is there anyway a stream is."""
    rows = Rows(stream.operand)
    while (earlier := rows.before()) is not None:
        rows = earlier
    if not _is_noticed(stream.operand) or not _is_whole(rows.array):
        return None
    copied = rows.array is not stream.operand and _is_there(rows.array, scan)
    return rows if copied or rows.is_counted else None


def _is_noticed(array: Value) -> bool:
    """Whether a copy of an array counts beside what XLA aligns in a loop."""
    return not cost_model().is_quick(array.nbytes)


def _is_of_rows(part: Op) -> bool:
    """Whether a slice is of whole rows, one beside the other."""
    starts, limits, (array,) = starts_of(part), limits_of(part), part.operands
    # Condition 1 of scan-in-place.
    whole = not any(starts[1:]) and limits[1:] == array.shape[1:]
    # Condition 1 of scan-in-place.
    return whole and all(n == 1 for n in strides_of(part))


def _is_whole(array: Value) -> bool:
    """Whether its type says of no mesh that it may be divided over."""
    return bool(array.aval.sharding.mesh.empty)


def _is_there(array: Value, scan: Scan) -> bool:
    """Whether an array is kept until the loop begins, whoever reads it there."""
    if array.op is None:
        return True
    region = scan.region
    if region is None or array.region is not region:
        return False
    users = (region.ancestor(user) for user in array.users)
    return any(user is not None and region.order(user) >= region.order(scan) for user in users)


def place_of_stack(stack: Stack, scan: Scan) -> Place | None:
    """What larger array a stack becomes a part of, and which (2)."""
    if not _is_noticed(stack.result):
        return None
    # Condition 2 of scan-in-place.
    if len(stack.result.uses) != 1:
        return None
    ((whole, position),) = stack.result.uses
    if whole.name != "concatenate" or dimension_of(whole) != 0 or whole.region is not scan.region:
        # Condition 2 of scan-in-place.
        return None
    others = [v for v in whole.operands if v is not stack.result]
    if sum(v.nbytes for v in others) >= stack.result.nbytes or not _is_whole(whole.result):
        return None
    return Place(whole, sum(v.shape[0] for v in whole.operands[:position]))
