"""Ranges of numbers, computed where the program runs: the least and the greatest that an element of
an array may be, if those of the arrays that it is made of are known.

`RANGES` is a table: an op, and the range of its results, by those of its operands. What is not
finite says that nothing is known. Ends that are rounded are moved apart by as much, and numbers
that may be flushed to zero are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import expm1, log1p, prod
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.softmax import has_the_greatest, is_from_the_greatest
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import exponent_of, filled_by, numbers_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import EXACT, SUMS, VIEWING

Range = tuple[Any, Any]
"""The least and the greatest number, as scalars; of a truth value, 0 and 1. A scalar that is known
already is NumPy's, and so is what is computed of such.
"""
Rule = Callable[..., Range]


def _is_known(*numbers: Any) -> bool:
    return all(isinstance(each, np.generic | float | int) for each in numbers)


def lesser(a: Any, b: Any) -> Any:
    """The lesser of two numbers; NaN if one is."""
    return np.minimum(a, b) if _is_known(a, b) else lax.min(a, b)


def greater(a: Any, b: Any) -> Any:
    """The greater of two numbers; NaN if one is."""
    return np.maximum(a, b) if _is_known(a, b) else lax.max(a, b)


def _select(test: Any, a: Any, b: Any) -> Any:
    if _is_known(test):
        return a if test else b
    return lax.select(test, a, b)


def _like(a: Any, number: float) -> Any:
    """A number of the same dtype."""
    return a.dtype.type(number)


def hull(*ranges: Range) -> Range:
    """The range of what is in any of these."""
    lows, highs = zip(*ranges, strict=True)
    return reduce(lesser, lows), reduce(greater, highs)


def is_within(a: Range, b: Range) -> Any:
    """Whether a range is in another one."""
    return (a[0] >= b[0]) & (a[1] <= b[1])


def size(a: Range) -> Any:
    """The greatest absolute value."""
    return greater(-a[0], a[1])


def is_finite(a: Range) -> Any:
    """Whether all numbers of a range are finite."""
    return size(a) < np.inf


def _nothing(a: Range) -> Range:
    """The range of a number of which nothing is known."""
    return _like(a[0], np.nan), _like(a[0], np.nan)


def _if(known: Any, low: Any, high: Any) -> Range:
    """A range that is known under a condition."""
    least, most = _nothing((low, high))
    return _select(known, low, least), _select(known, high, most)


def _apart(a: Range) -> Any:
    """Whether zero is not in a range."""
    return (a[0] > 0) | (a[1] < 0)


def _least(a: Range) -> Any:
    """The least absolute value."""
    ends = lesser(abs(a[0]), abs(a[1]))
    return _select(_apart(a), ends, ends * 0)


def _same(_: Op, a: Range, *__: Range) -> Range:
    return a


def _sum(op: Op, a: Range, b: Range) -> Range:
    sizes = size(a) + size(b)
    return _off(op, a[0] + b[0], sizes, -1), _off(op, a[1] + b[1], sizes, 1)


def _total(op: Op, a: Range, terms: int) -> Range:
    """A sum of so many numbers, in any order."""
    sizes = size(a) * terms
    return _off(op, a[0] * terms, sizes, -1, terms), _off(op, a[1] * terms, sizes, 1, terms)


def _off(op: Op, end: Any, sizes: Any, sign: int, times: int = 1) -> Any:
    """An end of a sum that is rounded so often, of terms of such sizes: if all have the sign of the
    end that is nearer to zero, or that is zero, so has their sum.
    """
    most = _rounded(op, times)
    is_nearer = end >= 0 if sign < 0 else end <= 0
    return _select(is_nearer, end * (1 - min(most, 1.0)), end + sign * most * sizes)


def _rounded(op: Op, times: int) -> float:
    """By how much of its terms a sum of so many may be rounded, and an end of its range three
    times.
    """
    return expm1(min((times + 3) * log1p(_ulp(op)), limits.OF_A_SUM))


def _ulp(op: Op) -> float:
    """By how much of itself a result is rounded."""
    dtype = op.results[0].dtype
    return 2.0 ** -dtypes.precision(dtype) if dtypes.is_inexact(dtype) else 0.0


def _negated(_: Op, a: Range) -> Range:
    return -a[1], -a[0]


def _product(op: Op, a: Range, b: Range) -> Range:
    return _power(2)(op, a) if op.operands[0] is op.operands[1] else _times(a, b)


def _times(a: Range, b: Range) -> Range:
    ends = [x * y for x in a for y in b]
    return hull(*zip(ends, ends, strict=True))


def _power(n: int) -> Rule:
    def rule(op: Op, a: Range) -> Range:
        if n < 0:
            return _inverse(op, _power(-n)(op, a))
        if n % 2:
            return lax.integer_pow(a[0], n), lax.integer_pow(a[1], n)
        return lax.integer_pow(_least(a), n), lax.integer_pow(size(a), n)

    return rule


def _inverse(_: Op, a: Range) -> Range:
    return _if(_apart(a), 1 / a[1], 1 / a[0])


def _reduced(op: Op, a: Range) -> Range:
    low, high = _total(op, a, op.operands[0].size // max(op.result.size, 1))
    if has_the_greatest(op):
        low = greater(low, _like(low, 1 - _ulp(op)))
    return low, high


def _dot(op: Op, a: Range, b: Range) -> Range:
    (contracted, _), _ = numbers_of(op)
    terms = prod(int(op.operands[0].shape[axis]) for axis in contracted)
    most = size(a) * size(b) * terms * (1 + _rounded(op, terms))
    return -most, most


def _growing(fun: Callable[[jax.Array], jax.Array], above: float = -np.inf) -> Rule:
    """A function that grows, and is unknown unless its operand is greater than a number."""

    def rule(_: Op, a: Range) -> Range:
        low, high = fun(a[0]), fun(a[1])
        by = limits.OF_A_FUNCTION
        return _if(a[0] > above, low - by * abs(low), high + by * abs(high))

    return rule


BETWEEN = {
    **dict.fromkeys(("cos", "erf", "sign", "sin", "tanh"), (-1.0, 1.0)),
    "erfc": (0.0, 2.0),
    "logistic": (0.0, 1.0),
}
"""Functions whose results are between two numbers, if their operands are finite."""


def between(op: Op, a: Range) -> Range:
    """The range of what one of `BETWEEN` makes of finite numbers; it is known."""
    low, high = BETWEEN[op.name]
    return _like(a[0], low - limits.OF_A_FUNCTION), _like(a[0], high + limits.OF_A_FUNCTION)


def _between(op: Op, a: Range) -> Range:
    return _if(is_finite(a), *between(op, a))


def _greater(_: Op, a: Range, b: Range) -> Range:
    return greater(a[0], b[0]), greater(a[1], b[1])


def _lesser(_: Op, a: Range, b: Range) -> Range:
    return lesser(a[0], b[0]), lesser(a[1], b[1])


def _selected(op: Op, which: Range, *cases: Range) -> Range:
    low, high = hull(*cases)
    if asked_for_nan(op.operands[0]) is not None:
        is_first = which[1] <= 0
    elif _counts_from_the_end(op):
        is_first = cases[0][0] >= 0
    else:
        return low, high
    return _select(is_first, cases[0][0], low), _select(is_first, cases[0][1], high)


def asked_for_nan(value: Value) -> Value | None:
    """The numbers of which truth values say which are NaN: ``x != x``."""
    op = value.op
    is_asked = op is not None and op.name == "ne" and op.operands[0] is op.operands[1]
    return op.operands[0] if op is not None and is_asked else None


def _unequal(op: Op, a: Range, _: Range) -> Range:
    no, yes = _like(a[0], 0), _like(a[0], 1)
    is_asked = asked_for_nan(op.result) is not None
    is_number = is_finite(a) if is_asked else np.False_
    return no, _select(is_number, no, yes)


def _counts_from_the_end(op: Op) -> bool:
    """Whether a select takes its second case where its first is below zero, as of an index."""
    test, number = op.operands[0].op, op.operands[1]
    is_test = test is not None and test.name == "lt" and test.operands[0] is number
    return is_test and test is not None and uniform(test.operands[1]) == 0


def _read(op: Op, a: Range, where: Range) -> Range:
    """Windows of an array; a gather may give something else where it is out of range."""
    if filled_by(op) == 0:
        zero = _like(a[0], 0)
        return hull(a, (zero, zero))
    numbers = numbers_of(op)
    last = min(op.operands[0].shape[axis] for axis in numbers.start_index_map) - 1
    is_number = all(axis in numbers.collapsed_slice_dims for axis in numbers.start_index_map)
    if not is_number or last > limits.EXACT_NUMBERS:
        return _nothing(a)
    return _if((where[0] >= 0) & (where[1] <= last), *a)


def _difference(op: Op, a: Range, b: Range) -> Range:
    low, high = _sum(op, a, _negated(op, b))
    return (low, lesser(high, _like(high, 0))) if is_from_the_greatest(op) else (low, high)


def _quotient(op: Op, a: Range, b: Range) -> Range:
    return _times(a, _inverse(op, b)) if dtypes.is_inexact(op.result.dtype) else _nothing(a)


def _powers(_: Op, a: Range, b: Range) -> Range:
    ends = [lax.pow(x, y) for x in a for y in b]
    low, high = hull(*zip(ends, ends, strict=True))
    by = limits.OF_A_FUNCTION
    return _if(a[0] > 0, low * (1 - by), high * (1 + by))


RANGES: dict[str, Rule] = {
    **dict.fromkeys(VIEWING | {"name", "reduce_max", "reduce_min", "reduce_precision"}, _same),
    **dict.fromkeys(("convert_element_type", "cummax", "cummin", "split", "unstack"), _same),
    **dict.fromkeys(("concatenate", "pad", "sort", "stack"), lambda _, *each: hull(*each)),
    **dict.fromkeys(("add", "add_any"), _sum),
    **dict.fromkeys(("ceil", "floor", "round"), lambda _, a: (lax.floor(a[0]), lax.ceil(a[1]))),
    **dict.fromkeys(BETWEEN, _between),
    "abs": lambda _, a: (_least(a), size(a)),
    "clamp": lambda op, low, a, high: _lesser(op, _greater(op, a, low), high),
    "cumsum": lambda op, a: _total(op, hull(a, _negated(op, a)), max(op.result.shape)),
    "div": _quotient,
    "dot_general": _dot,
    "dynamic_slice": _same,
    "dynamic_update_slice": lambda _, a, b, *__: hull(a, b),
    "exp": _growing(lax.exp),
    "exp2": _growing(lax.exp2),
    "expm1": _growing(lax.expm1),
    "gather": _read,
    "integer_pow": lambda op, a: _power(exponent_of(op))(op, a),
    "log": _growing(lax.log, above=0.0),
    "log1p": _growing(lax.log1p, above=-1.0),
    "max": _greater,
    "min": _lesser,
    "mul": _product,
    "ne": _unequal,
    "neg": _negated,
    "pow": _powers,
    "reduce_sum": _reduced,
    "rsqrt": lambda op, a: _inverse(op, _growing(lax.sqrt)(op, a)),
    "scatter": lambda _, a, __, b: hull(a, b),
    "select_n": _selected,
    "sqrt": _growing(lax.sqrt),
    "square": _power(2),
    "sub": _difference,
}  # fmt: skip


_EXACT = EXACT | VIEWING | {"concatenate", "dynamic_slice", "gather", "pad", "stack"}
_SUMMED = SUMS | {"cumsum", "dot_general", "reduce_sum", "sub"}
"""Ops whose rules move the ends apart."""


BY_SIZE = frozenset({"dot_general", *BETWEEN})
"""Ops of whose operands the greatest absolute value tells as much as a range."""


def is_ranged(dtype: Any) -> bool:
    """Whether ranges of such numbers are known: of integers, and of floats of 16 bits or more."""
    is_large = dtypes.is_real(dtype) and dtypes.is_inexact(dtype) and dtypes.bits(dtype) >= 16
    return dtypes.is_integer(dtype) or is_large


def ranged(op: Op, *operands: Range) -> Range:
    """The range of what an op makes of numbers in ranges."""
    low, high = RANGES[op.name](op, *operands)
    dtype = op.results[0].dtype
    if op.name in _EXACT or not dtypes.is_inexact(dtype):
        return low, high
    ulp, least = _ulp(op), dtypes.least(dtype) / limits.OF_ITS_RANGE
    if op.name not in _SUMMED:
        low, high = low - ulp * abs(low), high + ulp * abs(high)
    if op.name == "dot_general":  # zero is in its range
        return low, high
    zero = _like(low, 0)
    return (
        _select(low < least, lesser(low, zero), low),
        _select(high > -least, greater(high, zero), high),
    )


def limits_of(op: Op, number: Any) -> Range | None:
    """The range of numbers that an op's results hold, however they are rounded, as far as a number
    of the dtype in which ends are computed tells; None if they hold all.
    """
    dtype = op.results[0].dtype
    if op.results[0].dtype == bool:
        return None
    if dtypes.is_integer(dtype):
        low, high = map(float, dtypes.limits(dtype))
    else:
        high = min(map(dtypes.most, (dtype, number)))
        low = -high
    return number.type(low * limits.OF_ITS_RANGE), number.type(high * limits.OF_ITS_RANGE)


def fits(op: Op, a: Range) -> Any:
    """Whether a range is one of numbers that an op's results hold."""
    held = limits_of(op, a[0].dtype)
    return np.True_ if held is None else is_within(a, held)
