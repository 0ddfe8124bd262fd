"""Bounds of the results of ops on floats, by the bounds of their operands.

`RULES` is a table: an op, and the bounds of its result by those of its operands. Ends that are
rounded are moved apart by as much, and numbers that may be flushed to zero are zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, prod

import numpy as np

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import axes_of, exponent_of, filled_by, numbers_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.traits import EXACT, VIEWING


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the greatest number that an element may be, and whether it may be NaN."""

    low: float = -inf
    high: float = inf
    nan: bool = True

    @property
    def is_finite(self) -> bool:
        """Whether every element is a finite number."""
        return not self.nan and -inf < self.low and self.high < inf

    @property
    def size(self) -> float:
        """The greatest absolute value."""
        return max(abs(self.low), abs(self.high))

    @property
    def has_zero(self) -> bool:
        """Whether an element may be zero."""
        return self.low <= 0 <= self.high


Rule = Callable[..., Bounds]
UNKNOWN = Bounds()


def hull(parts: Iterable[Bounds]) -> Bounds:
    """The bounds of what is in any of these."""
    low, high, nan = zip(*((each.low, each.high, each.nan) for each in parts), strict=True)
    return Bounds(min(low), max(high), any(nan))


# ---------------------------------------------------------------- how results are rounded


def rounded(op: Op, found: Bounds) -> Bounds:
    """The bounds of results that are rounded to the type of the op's, or not yet, as XLA may keep
    what it reads at once.
    """
    if op.name in _EXACT or not dtypes.is_inexact(op.result.dtype):
        return found
    if math.isnan(found.low) or math.isnan(found.high):
        return UNKNOWN
    low, high = (_moved(op, end, sign) for end, sign in ((found.low, -1), (found.high, 1)))
    return Bounds(low, high, found.nan)


def _moved(op: Op, end: float, sign: int) -> float:
    """An end, or as far from the others as it may be rounded."""
    dtype = op.result.dtype
    least, most = dtypes.least(dtype), dtypes.most(dtype)
    if abs(end) < least:  # it may be flushed to zero, or not
        return 0.0 if sign * end <= 0 else sign * least
    if abs(end) == inf:
        return end
    if op.name not in _NEAREST:
        end += sign * abs(end) * 2.0 ** -dtypes.precision(dtype)
    with np.errstate(over="ignore"):
        ends = end, float(np.asarray(end).astype(dtype))
    return math.copysign(inf, end) if sign * end > most else max(ends) if sign > 0 else min(ends)


# ---------------------------------------------------------------- what ops make


def _same(_: Op, a: Bounds, *__: Bounds) -> Bounds:
    return a


def _sum(_: Op, a: Bounds, b: Bounds) -> Bounds:
    is_lost = (a.high == inf and b.low == -inf) or (a.low == -inf and b.high == inf)
    low = -inf if -inf in (a.low, b.low) else _plus(a.low, b.low, -inf)
    high = inf if inf in (a.high, b.high) else _plus(a.high, b.high, inf)
    return Bounds(low, high, a.nan or b.nan or is_lost)


def _plus(x: float, y: float, beyond: float) -> float:
    """A sum, or the next number beyond it if it is rounded: it is rounded once more."""
    total = x + y
    is_exact = math.isinf(total) or math.fsum((x, y, -total)) == 0
    return total if is_exact else math.nextafter(total, beyond)


def _negated(_: Op, a: Bounds) -> Bounds:
    return Bounds(-a.high, -a.low, a.nan)


def _product(op: Op, a: Bounds, b: Bounds) -> Bounds:
    if op.operands[0] is op.operands[1]:
        return _power(2)(op, a)
    is_lost = (a.has_zero and b.size == inf) or (b.has_zero and a.size == inf)
    ends = [x * y if x and y else 0.0 for x in (a.low, a.high) for y in (b.low, b.high)]
    return Bounds(min(ends), max(ends), a.nan or b.nan or is_lost)


def _inverse(a: Bounds) -> Bounds:
    if a.has_zero:
        return UNKNOWN
    return Bounds(1 / a.high, 1 / a.low, a.nan)


def _quotient(op: Op, a: Bounds, b: Bounds) -> Bounds:
    if b.has_zero or not dtypes.is_inexact(op.result.dtype) or a.size == b.size == inf:
        return UNKNOWN
    inverse = _inverse(b)
    ends = [x * y if x and y else 0.0 for x in (a.low, a.high) for y in (inverse.low, inverse.high)]
    return Bounds(min(ends), max(ends), a.nan or b.nan)


def _power(n: int) -> Rule:
    def rule(_: Op, a: Bounds) -> Bounds:
        if n < 1:
            return UNKNOWN
        ends = [_raised(a.low, n), _raised(a.high, n)]
        low = 0.0 if n % 2 == 0 and a.has_zero else min(ends)
        return Bounds(low, max(ends), a.nan)

    return rule


def _raised(x: float, n: int) -> float:
    try:
        return x**n
    except OverflowError:
        return inf if x > 0 or n % 2 == 0 else -inf


def _total(op: Op, a: Bounds, terms: int) -> Bounds:
    """A sum of so many numbers, in any order."""
    if not a.is_finite or not isinstance(terms, int):
        return UNKNOWN
    off = math.expm1(min(terms * 2.0 ** -dtypes.precision(op.result.dtype), limits.OF_A_SUM))
    off *= terms * a.size
    low = max(terms * a.low - off, 0.0 if a.low >= 0 else -inf)
    return Bounds(low, min(terms * a.high + off, 0.0 if a.high <= 0 else inf), nan=False)


def _reduced(op: Op, a: Bounds) -> Bounds:
    return _total(op, a, prod(op.operands[0].shape[axis] for axis in axes_of(op)))


def _extreme(op: Op, a: Bounds) -> Bounds:
    return a if 0 not in op.operands[0].shape else UNKNOWN


def _dot(op: Op, a: Bounds, b: Bounds) -> Bounds:
    if not a.is_finite or not b.is_finite:
        return UNKNOWN
    (contracted, _), _ = numbers_of(op)
    terms = prod(op.operands[0].shape[axis] for axis in contracted)
    most = a.size * b.size
    return _total(op, Bounds(-most, most, nan=False), terms)


def _growing(fun: Callable[[float], float], above: float = -inf) -> Rule:
    """A function that grows, and is NaN below a number."""

    def rule(_: Op, a: Bounds) -> Bounds:
        low, high = (_at(fun, max(end, above)) for end in (a.low, a.high))
        by = limits.OF_A_FUNCTION
        return Bounds(low - by * abs(low), high + by * abs(high), a.nan or a.low < above)

    return rule


def _at(fun: Callable[[float], float], x: float) -> float:
    with np.errstate(all="ignore"):
        return float(fun(np.float64(x)))


def _between(low: float, high: float) -> Rule:
    """A function whose results are between two numbers, also of infinite operands."""

    def rule(_: Op, a: Bounds) -> Bounds:
        by = limits.OF_A_FUNCTION
        return Bounds(low - by, high + by, a.nan)

    return rule


def _wave(_: Op, a: Bounds) -> Bounds:
    return Bounds(-1 - limits.OF_A_FUNCTION, 1 + limits.OF_A_FUNCTION, a.nan or a.size == inf)


def _erf_inv(_: Op, a: Bounds) -> Bounds:
    is_within = a.low > -1 and a.high < 1
    return Bounds(-limits.ERF_INV, limits.ERF_INV, a.nan) if is_within else UNKNOWN


def _greater(_: Op, a: Bounds, b: Bounds) -> Bounds:
    return Bounds(max(a.low, b.low), max(a.high, b.high), a.nan or b.nan)


def _lesser(_: Op, a: Bounds, b: Bounds) -> Bounds:
    return Bounds(min(a.low, b.low), min(a.high, b.high), a.nan or b.nan)


def _absolute(_: Op, a: Bounds) -> Bounds:
    least = 0.0 if a.has_zero else min(abs(a.low), abs(a.high))
    return Bounds(least, a.size, a.nan)


def _gathered(op: Op, a: Bounds, *_: Bounds) -> Bounds:
    fill = filled_by(op)
    if fill is None or not np.isfinite(fill):
        return UNKNOWN
    return hull((a, Bounds(float(fill), float(fill), nan=False)))


def _cast(op: Op, _: Bounds) -> Bounds:
    """Floats of random bits: JAX sets those of the exponent of 1, and shifts others below it."""
    made, dtype = op.operands[0].op, op.result.dtype
    if made is None or made.name != "or" or not dtypes.is_inexact(dtype):
        return UNKNOWN
    one, (shifted, exponent) = np.asarray(1, dtype), made.operands
    shift = shifted.op
    is_one = uniform(exponent) == one.view(f"uint{dtypes.bits(dtype)}")
    if not is_one or shift is None or shift.name != "shift_right_logical":
        return UNKNOWN
    by = uniform(shift.operands[1])
    is_below = by is not None and dtypes.bits(dtype) - int(by) <= dtypes.precision(dtype)
    return Bounds(1.0, 2.0 - 2.0 ** -dtypes.precision(dtype), nan=False) if is_below else UNKNOWN


def _hull(_: Op, *parts: Bounds) -> Bounds:
    return hull(parts)


_SAME = frozenset({"convert_element_type", "cummax", "cummin", "dynamic_slice", "name"})

RULES: dict[str, Rule] = {
    **dict.fromkeys(VIEWING | _SAME, _same),
    **dict.fromkeys(("add", "add_any"), _sum),
    **dict.fromkeys(("concatenate", "pad", "stack"), _hull),
    **dict.fromkeys(("cos", "sin"), _wave),
    **dict.fromkeys(("erf", "sign", "tanh"), _between(-1, 1)),
    **dict.fromkeys(("reduce_max", "reduce_min"), _extreme),
    "abs": _absolute,
    "atan": _between(-2, 2),
    "bitcast_convert_type": _cast,
    "ceil": _growing(np.ceil),
    "clamp": lambda op, low, a, high: _lesser(op, _greater(op, a, low), high),
    "div": _quotient,
    "dot_general": _dot,
    "dynamic_update_slice": lambda _, a, b, *__: hull((a, b)),
    "erf_inv": _erf_inv,
    "erfc": _between(0, 2),
    "exp": _growing(np.exp),
    "exp2": _growing(np.exp2),
    "expm1": _growing(np.expm1),
    "floor": _growing(np.floor),
    "gather": _gathered,
    "integer_pow": lambda op, a: _power(exponent_of(op))(op, a),
    "log": _growing(np.log, above=0.0),
    "log1p": _growing(np.log1p, above=-1.0),
    "logistic": _between(0, 1),
    "max": _greater,
    "min": _lesser,
    "mul": _product,
    "neg": _negated,
    "reduce_sum": _reduced,
    "round": _growing(np.round),
    "rsqrt": lambda op, a: _inverse(_growing(np.sqrt, above=0.0)(op, a)),
    "select_n": lambda _, __, *cases: hull(cases),
    "sqrt": _growing(np.sqrt, above=0.0),
    "square": _power(2),
    "sub": lambda op, a, b: _sum(op, a, _negated(op, b)),
}  # fmt: skip

_NEAREST = frozenset({"add", "add_any", "convert_element_type", "mul", "sub"})
"""Their ends are rounded as they are."""

_EXACT = (
    EXACT
    | VIEWING
    | {"bitcast_convert_type", "concatenate", "dynamic_slice", "gather", "pad", "stack"}
)
