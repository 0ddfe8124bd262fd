"""Functions of numbers that take longer than `exp`: in all programs, of complex numbers, or in one
function of a loop.  Figures of XLA:CPU, float32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import frexp
from typing import Any

import jax.numpy as jnp

from jaxpr_opt.ir.graph import Constant, Op, Value, is_sized
from jaxpr_opt.ir.traits import TRANSCENDENTAL, is_broadcast

OF_COMPLEX = 16
"""How many functions of real numbers, several of which are computed together, take as long as one
of a complex number: `exp` 6.4 ns instead of 0.4, `tanh` 8.1 instead of 0.3, `sqrt` 3.8 instead of
0.2, `log` 22 instead of 0.5."""

SLOW = {
    "acos": 2, "asin": 1, "atan": 1, "atan2": 2, "cbrt": 1, "cos": 1, "pow": 1, "rem": 0.5,
    "sin": 1, "tan": 2,
}  # fmt: skip
"""Functions that are computed number by number everywhere, and in how many times the time of
`sin`; `rem` of floats, 2.5 to 13 ns, unless it is by a power of two; `pow`, 3.2 to 6 ns, unless XLA
makes a root or products of it."""

FEW_FACTORS = (-1, 0, 0.5, 1, 2, 3)
"""Exponents of which XLA makes products, a quotient or a root: 0.2 to 0.4 ns."""

ONE_BY_ONE = {
    "acosh": 5, "argmax": 2, "argmin": 2, "asinh": 7, "atan": 3, "atan2": 3, "atanh": 9, "erf": 1,
    "erf_inv": 6, "expm1": 4, "log1p": 4, "rsqrt": 1, "sinh": 9, "tanh": 1,
}  # fmt: skip
"""What is computed for several numbers at once, but not in one function of a loop that reads them
in a row of a stack: so many times what a `tanh` takes longer there, 0.5 ns."""

TYPES_ONE_BY_ONE = frozenset({"bfloat16", "float64"})
"""Types of which no transcendental function is computed for several numbers at once there."""


def of_real_numbers(op: Op, values: int | None) -> int | None:
    """Functions of real numbers that take as long as the `values` that an op computes; a complex
    quotient is arithmetic.
    """
    is_complex = op.name != "div" and jnp.issubdtype(op.result.dtype, jnp.complexfloating)
    return values * OF_COMPLEX if values is not None and is_complex else values


def slow_values(op: Op) -> float:
    """How many values of `sin` take as long as those of such a function; 0 of another op."""
    if op.name not in SLOW or not is_sized(op.result.shape):
        return 0
    is_quick = op.name in QUICK and QUICK[op.name](op, _known(op.operands[1]))
    return 0 if is_quick else SLOW[op.name] * op.result.size


def _truncates(rem: Op, by: Any) -> bool:
    """Whether it is of integers, or by a constant 1, 2, 4, ...: LLVM then truncates a quotient."""
    if not jnp.issubdtype(rem.result.dtype, jnp.floating):
        return True
    return by is not None and abs(by) >= 1 and frexp(abs(float(by)))[0] == frexp(1.0)[0]


def _multiplies(_: Op, exponent: Any) -> bool:
    return exponent in FEW_FACTORS


QUICK: dict[str, Callable[[Op, Any], bool]] = {"pow": _multiplies, "rem": _truncates}
"""Whether a slow function is not, by its second operand, if that is a known number."""


def _known(value: Value) -> Any:
    """The number that all elements of a value are, if it is known."""
    source = _source(value)
    return source.scalar if isinstance(source, Constant) else None


def longer_one_by_one(op: Op) -> int:
    """How much longer the numbers of an op take in one function of a loop, in that of a `tanh`."""
    more = ONE_BY_ONE.get(op.name, 0)
    if op.name == "div" and _is_root(op.operands[1]):
        more = ONE_BY_ONE["rsqrt"]  # what XLA makes of it
    elif op.name in TRANSCENDENTAL and op.result.dtype.name in TYPES_ONE_BY_ONE:
        more += 1
    return more * max(op.operands[0].size, op.result.size) if more else 0


def _is_root(value: Value) -> bool:
    root = _source(value)
    return root.op is not None and root.op.name == "sqrt"


def _source(value: Value) -> Value:
    """What is repeated to make a value."""
    while value.op is not None and is_broadcast(value.op):
        value = value.op.operands[0]
    return value
