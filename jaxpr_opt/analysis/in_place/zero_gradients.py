"""The results of the ops of an optimizer where the gradient is zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.step_numbers import ARITHMETIC
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import exponent_of
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import LAYING, PICKING, SUMS, ZERO_AT_ZERO


def at_zero(op: Op, known: dict[Value, Any]) -> Any:
    """The result of an op where the gradient is zero: a number, or a value that it reads; else its
    result.
    """
    operands = [known.get(v, v) for v in op.operands]
    numbers = [uniform(v) if isinstance(v, Value) else v for v in operands]
    if op.name == "select_n" and op.operands[0].dtype == bool and numbers[0] is not None:
        return operands[1 + bool(numbers[0])]
    if op.name == "select_n" and len({*map(id, operands[1:])}) == 1:
        return operands[1]
    if op.name in ARITHMETIC and not any(number is None for number in numbers):
        typed = [np.asarray(n, v.dtype) for n, v in zip(numbers, op.operands, strict=True)]
        with np.errstate(all="ignore"):
            made = ARITHMETIC[op.name](*typed)
        return dtypes.converted(made, op.result.dtype)[()]
    zeros = [*map(is_zero, numbers)]
    if op.name in LAYING | PICKING and numbers[0] is not None and op.operands[0].size:
        return numbers[0]
    if _makes_zero(op, zeros):
        return op.result.dtype.type(0)
    # Condition 1 of update-states.
    if op.name in SUMS | {"sub"} and zeros[1]:
        return operands[0]
    # Condition 1 of update-states.
    return operands[1] if op.name in SUMS and zeros[0] else op.result


def is_zero(number: Any) -> bool:
    """Whether it is a number that is zero, not a value."""
    return number is not None and not isinstance(number, Value) and bool(number == 0)


# Condition 2 of update-states.
def _makes_zero(op: Op, zeros: list[bool]) -> bool:
    """Whether zeros make a zero, unless the other operand is NaN, infinite, or a zero divisor."""
    first, *others = zeros
    if op.name == "mul":
        return first or any(others)
    if op.name == "div":
        return first and not others[0]
    if op.name == "integer_pow":
        return first and exponent_of(op) > 0
    if op.name == "select_n":
        return all(others)
    return op.name in ZERO_AT_ZERO and first and all(others)
