"""Masks that tell which elements of an array a write has touched."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.induction import bounds
from jaxpr_opt.analysis.values.intervals import Interval
from jaxpr_opt.analysis.windows.window_primitives import UPDATE
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import combiner_of
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value


@dataclass(frozen=True, slots=True)
class WrittenMask:
    """A mask that is `there` where `write` writes, and the opposite elsewhere."""

    write: Op
    there: bool


def written_mask(mask: Value) -> WrittenMask | None:
    """The write that decides a mask; None if none does."""
    if mask.dtype != bool or mask.op is None:
        return None
    # Condition 1 of write-where-masked.
    if mask.op.name not in ("eq", "ne"):
        return _compared(mask, 1, negated=False)
    for array, other in (mask.op.operands, mask.op.operands[::-1]):
        number = uniform(other)
        if number is not None and (dtypes.is_integer(array.dtype) or array.dtype == bool):
            return _compared(array, int(number), negated=mask.op.name == "ne")
    return None


def _compared(array: Value, number: int, *, negated: bool) -> WrittenMask | None:
    """Where the elements of an array are a number: everywhere, but where it was written to."""
    write = array.op
    # Condition 1 of write-where-masked.
    if write is None or write.name not in UPDATE or write.name == "scatter-add":
        return None
    # Condition 1 of write-where-masked.
    if (write.name == "scatter" and combiner_of(write)) or is_sharded(array):
        return None
    base, values = uniform(write.operands[0]), _range(write.operands[UPDATE[write.name]])
    elsewhere = None if base is None else int(base) == number
    there = _is(number, values)
    # Condition 2 of write-where-masked.
    if elsewhere is None or there is None or elsewhere == there:
        return None
    return WrittenMask(write, there != negated)


def _range(value: Value) -> Interval | None:
    number = uniform(value)
    return bounds(value) if number is None else (int(number), int(number))


def _is(number: int, values: Interval | None) -> bool | None:
    """Whether all of some integers are a number, or none is; None if that is unknown."""
    # Condition 2 of write-where-masked.
    if values is None:
        return None
    if not values[0] <= number <= values[1]:
        return False
    return True if values[0] == values[1] else None
