"""Differences of the elements of rows from the greatest one, as a softmax exponentiates them.

They are not above zero, and one of each row is zero: so the sum of their exponentials is at least
one, however large the elements are.
"""

from __future__ import annotations

import numpy as np

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.bridge.parameters import axes_of, broadcast_dimensions_of
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import LAYING


def is_from_the_greatest(difference: Op) -> bool:
    """Whether what is subtracted from each element is the greatest of some with this one."""
    array, value = difference.operands
    return _greatest(value, array) is not None


def has_the_greatest(total: Op) -> bool:
    """Whether the terms of a sum are exponentials of such differences, with the greatest."""
    exponential = total.operands[0].op
    difference = exponential.operands[0].op if exponential and exponential.name == "exp" else None
    if difference is None or difference.name != "sub":
        return False
    array, value = difference.operands
    greatest = _greatest(value, array)
    return greatest is not None and set(axes_of(greatest)) <= set(axes_of(total))


def _greatest(value: Value, array: Value) -> Op | None:
    """The reduction of an array whose results a value has, each where its elements are; where
    that is not finite, it may be another number.
    """
    laid: list[Op] = []
    while (op := value.op) is not None and op.name != "reduce_max":
        others = [v for v in op.operands if uniform(v) is None]
        if op.name in LAYING:
            laid.append(op)
        elif op.name == "select_n" and len(op.operands) == 3:
            others = [v for v in op.operands[1:] if uniform(v) is None]
        elif op.name != "max" or not any(uniform(v) == -np.inf for v in op.operands):
            return None
        if len(others) != 1:
            return None
        (value,) = others
    if op is None or op.operands[0] is not array:
        return None
    reduced = set(axes_of(op))
    kept = tuple(axis for axis in range(len(array.shape)) if axis not in reduced)
    shape = tuple(1 if axis in reduced else n for axis, n in enumerate(array.shape))
    return op if all(_is_in_place(each, kept, shape) for each in laid) else None


def _is_in_place(op: Op, kept: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an op lays the results of a reduction along the axes that it has kept."""
    before, after = op.operands[0].shape, op.result.shape
    if op.name != "broadcast_in_dim":
        return after in (before, shape)
    is_reduced = len(before) < len(after)
    return broadcast_dimensions_of(op) == (kept if is_reduced else tuple(range(len(after))))
