"""Elementwise primitives in NumPy, with XLA's semantics where the two differ.

Transcendental functions are computed in double precision and rounded: an element does not depend
on the length of the array that it is in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxpr_opt.ir.graph import Op

Array = Any
Function = Callable[..., Any]


def _wide(fun: Function) -> Function:
    """`fun` computed in double precision."""

    def wide(*xs: Array) -> Array:
        dtype = xs[0].dtype
        if dtype.kind == "c" or dtype == np.float64:
            return fun(*xs)
        return np.asarray(fun(*(x.astype(np.float64) for x in xs))).astype(dtype)

    return wide


def _div(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iu":
        return np.divide(x, y).astype(x.dtype)
    zero = y == 0
    safe = np.where(zero, np.ones_like(y), y)
    quotient = np.trunc(np.divide(x.astype(np.longdouble), safe)).astype(x.dtype)
    return np.where(zero, np.array(-1).astype(x.dtype), quotient)


def _rem(x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iu":
        return np.fmod(x, y)
    zero = y == 0
    return np.where(zero, x, np.fmod(x, np.where(zero, np.ones_like(y), y)))


def _round(x: Array, op: Op) -> Array:
    if int(op.params["rounding_method"]) == 1:
        return np.rint(x)
    wide = x.astype(np.float64)
    return (np.sign(wide) * np.floor(np.abs(wide) + 0.5)).astype(x.dtype)


def _integer_pow(x: Array, op: Op) -> Array:
    n = int(op.params["y"])
    result = None
    for _ in range(abs(n)):
        result = x if result is None else result * x
    if result is None:
        return np.ones_like(x)
    return np.ones_like(x) / result if n < 0 else result


def _shift(fun: Function, fill: Callable[[Array], Array]) -> Function:
    def shift(x: Array, y: Array) -> Array:
        bits = 8 * x.dtype.itemsize
        big = (y < 0) | (y.astype(np.uint64) >= bits)
        return np.where(big, fill(x), fun(x, np.where(big, np.zeros_like(y), y)))

    return shift


def _logical(x: Array, y: Array) -> Array:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return (x.view(unsigned) >> y.view(unsigned)).view(x.dtype)


def convert(x: Array, dtype: Any) -> Array:
    """`lax.convert_element_type`: floats saturate as they become integers, NaN becomes zero."""
    dtype = np.dtype(dtype)
    if x.dtype == dtype:
        return x
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = x.real
    if dtype == np.bool_:
        return x != 0
    if dtype.kind in "iu" and x.dtype.kind not in "iub":
        info = np.iinfo(dtype)
        wide = np.where(x != x, 0, x.astype(np.float64))  # noqa: PLR0124 - NaN
        inside = np.clip(np.trunc(wide), info.min, float(info.max))
        return np.where(inside >= float(info.max), info.max, inside.astype(dtype)).astype(dtype)
    return x.astype(dtype)


def _select(which: Array, *cases: Array) -> Array:
    index = np.clip(which.astype(np.int64), 0, len(cases) - 1)  # XLA compares with the limits
    if index.ndim == 0:
        return cases[int(index)]
    result = cases[0]
    for k, case in enumerate(cases[1:], 1):
        result = np.where(index == k, case, result)
    return result


def _clamp(low: Array, x: Array, high: Array) -> Array:
    return np.minimum(np.maximum(x, low), high)


def _sign(x: Array) -> Array:
    return np.sign(x) if x.dtype.kind in "iuf" else np.sign(x.astype(np.float64)).astype(x.dtype)


def _logistic(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


PLAIN: dict[str, Function] = {
    "abs": np.abs, "add": np.add, "add_any": np.add, "ceil": np.ceil, "clamp": _clamp,
    "complex": lambda x, y: x + np.array(1j, np.result_type(x.dtype, np.complex64)) * y,
    "copy": lambda x: x, "div": _div, "eq": np.equal,
    "floor": np.floor, "ge": np.greater_equal, "gt": np.greater, "imag": np.imag,
    "is_finite": np.isfinite, "le": np.less_equal, "lt": np.less, "max": np.maximum,
    "min": np.minimum, "mul": np.multiply, "name": lambda x: x, "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert, "real": np.real, "rem": _rem, "select_n": _select, "sign": _sign,
    "square": np.square, "stop_gradient": lambda x: x, "sub": np.subtract,
    "shift_left": _shift(np.left_shift, np.zeros_like),
    "shift_right_arithmetic": _shift(np.right_shift, lambda x: np.where(x < 0, -1, 0)),
    "shift_right_logical": _shift(_logical, np.zeros_like),
}  # fmt: skip
"""By their operands alone."""

PLAIN |= {
    name: _wide(getattr(np, name))
    for name in ("sin", "cos", "tan", "tanh", "exp", "log", "log1p", "expm1", "sqrt", "cbrt",
                 "sinh", "cosh", "exp2", "log2")
}  # fmt: skip
PLAIN |= {
    "acos": _wide(np.arccos), "asin": _wide(np.arcsin), "atan": _wide(np.arctan),
    "asinh": _wide(np.arcsinh), "acosh": _wide(np.arccosh), "atanh": _wide(np.arctanh),
    "atan2": _wide(np.arctan2), "pow": _wide(np.power), "logistic": _wide(_logistic),
    "rsqrt": _wide(lambda x: 1.0 / np.sqrt(x)), "erf": _wide(_erf),
}  # fmt: skip

WITH_PARAMS: dict[str, Callable[[Array, Op], Array]] = {
    "convert_element_type": lambda x, op: convert(x, op.params["new_dtype"]),
    "integer_pow": _integer_pow,
    "round": _round,
}
"""Of one operand and the parameters."""


def _bitwise(fun: Function, logical: Function) -> Function:
    return lambda x, y: logical(x, y) if x.dtype == np.bool_ else fun(x, y)


for _name, _fun, _bool in (
    ("and", np.bitwise_and, np.logical_and),
    ("or", np.bitwise_or, np.logical_or),
    ("xor", np.bitwise_xor, np.logical_xor),
):
    PLAIN[_name] = _bitwise(_fun, _bool)
