"""The least and the greatest number in an array of floats, whatever the arguments are.

``where(s > 0, rsqrt(s + 1e-7), 0)`` is never infinite and never NaN; nor is a random number of a
normal distribution, which JAX makes of one between -1 and 1. So zero times it is zero. What is
computed only where a comparison holds is bounded by that comparison.

`float_rules` says what ops make of bounds. `ranges` tells more, when the program runs, of arrays
that it looks at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf

import numpy as np

from jaxpr_opt.analysis.values import induction
from jaxpr_opt.analysis.values.constants import captured_indices, scalar_of, uniform
from jaxpr_opt.analysis.values.float_rules import RULES, UNKNOWN, Bounds, hull, rounded
from jaxpr_opt.analysis.values.ranges import asked_for_nan, is_ranged
from jaxpr_opt.analysis.values.truths import implied
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import other_side
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Cond, Constant, Value
from jaxpr_opt.ir.traits import ELEMENTWISE


@remembered
def bounds(value: Value) -> Bounds:
    """The bounds of the elements of a value."""
    return _bounds_of(value, _Told())


def is_finite(value: Value) -> bool:
    """Whether every element is a finite number, whatever the arguments of the program are."""
    return bounds(value).is_finite


class _Told:
    """Bounds of each element of the compared numbers, where the comparisons come out as a select
    needs in order to take a case.
    """

    def __init__(self, told: Mapping[Value, Bounds] | None = None, level: int = 0) -> None:
        self.told = told or {}
        self.level = level
        """How many selects it is inside of."""
        self.known = dict(self.told)

    def bounds(self, value: Value) -> Bounds:
        """The bounds of an element of a value, and of all of what is far from the comparisons."""
        if not self.told or len(self.known) > limits.OPS_OF_A_CASE:
            return bounds(value)
        if value not in self.known:
            self.known[value] = _bounds_of(value, self)
        return self.known[value]

    def where(self, chosen: Value, *, truth: bool) -> _Told:
        """The bounds that also hold where a truth value is this."""
        if self.level == limits.LEVELS_OF_A_SELECT:
            return self
        scalar = scalar_of(chosen)
        truths = _of_each(chosen, truth) if scalar is None else implied(scalar, truth)
        told = dict(self.told)
        for compared, is_true in truths.items():
            op = compared.op
            if op is None or op.name not in _COMPARING or not _is_float(op.operands[0]):
                continue
            sides = [(v, self.bounds(v)) for v in op.operands]
            for value, found in _compared(op.name, sides, is_true):
                told[value] = _both(told.get(value) or self.bounds(value), found)
        return _Told(told, self.level + 1)


def _bounds_of(value: Value, told: _Told) -> Bounds:
    if value.dtype == bool:
        return Bounds(0.0, 1.0, nan=False)
    if not dtypes.is_real(value.dtype):
        return UNKNOWN
    if (number := uniform(value)) is not None:
        return UNKNOWN if np.isnan(number) else Bounds(float(number), float(number), nan=False)
    if dtypes.is_integer(value.dtype):
        low, high = induction.bounds(value) or dtypes.limits(value.dtype)
        return Bounds(float(low), float(high), nan=False)
    if isinstance(value, Constant):
        return _of_constant(value)
    op = value.op
    if op is None:
        rows = other_side(value)
        return UNKNOWN if rows is None else bounds(rows)
    if isinstance(op, Cond):
        return hull(map(bounds, op.outcomes[value.position].values))
    if op.name not in RULES or len(op.results) != 1 or not is_ranged(value.dtype):
        return UNKNOWN
    if op.name == "select_n" and op.operands[0].dtype == bool:
        chosen, *cases = op.operands
        number = asked_for_nan(chosen)
        if number is not None and not told.bounds(number).nan:
            return told.bounds(cases[0])
        truths = zip((False, True), cases, strict=True)
        return hull(told.where(chosen, truth=truth).bounds(case) for truth, case in truths)
    of_operands = map(told.bounds if op.name in ELEMENTWISE else bounds, op.operands)
    return rounded(op, RULES[op.name](op, *of_operands))


def _of_each(chosen: Value, truth: bool) -> dict[Value, bool]:
    """A truth value of each element, and others of the same element that must be so, too."""
    found = {chosen: truth}
    pending = [chosen]
    for each in pending:
        op, known = each.op, found[each]
        if op is not None and op.name in ("not", "and" if known else "or"):
            told = [v for v in op.operands if v not in found]
            found |= dict.fromkeys(told, known != (op.name == "not"))
            pending += told
    return found


_COMPARING = frozenset({"eq", "ge", "gt", "is_finite", "le", "lt", "ne"})
_OPPOSITE = {"eq": "ne", "ge": "lt", "gt": "le", "le": "gt", "lt": "ge", "ne": "eq"}


def _compared(
    name: str, sides: Sequence[tuple[Value, Bounds]], is_true: bool
) -> Iterator[tuple[Value, Bounds]]:
    """The bounds of two numbers where their comparison comes out so. A comparison with NaN is
    false, but for `ne`, which is true.
    """
    if name == "is_finite":
        if is_true:
            yield sides[0][0], _numbers(sides[0][0])
        return
    is_ordered = is_true != (name == "ne")
    relation = name if is_true else _OPPOSITE[name]
    for (value, own), (_, other) in (sides, sides[::-1]):
        nan = own.nan and not is_ordered
        if is_ordered or not other.nan:
            high = other.high if relation in ("eq", "le", "lt") else inf
            low = other.low if relation in ("eq", "ge", "gt") else -inf
            if relation == "ne" and other.low == other.high and abs(other.low) == inf:
                low, high = (-_most(value), inf) if other.low < 0 else (-inf, _most(value))
            yield value, Bounds(low, high, nan)
            if value.op is not None and value.op.name == "abs":
                yield value.op.operands[0], Bounds(-high, high, nan)
        relation = {"ge": "le", "gt": "lt", "le": "ge", "lt": "gt"}.get(relation, relation)


def _both(a: Bounds, b: Bounds) -> Bounds:
    """The bounds of what is in both; of nothing, those of the second."""
    low, high = max(a.low, b.low), min(a.high, b.high)
    return Bounds(low, high, a.nan and b.nan) if low <= high else b


def _is_float(value: Value) -> bool:
    return is_ranged(value.dtype) and dtypes.is_inexact(value.dtype)


def _most(value: Value) -> float:
    return dtypes.most(value.dtype)


def _numbers(value: Value) -> Bounds:
    """All finite numbers of a type."""
    return Bounds(-_most(value), _most(value), nan=False)


def _of_constant(array: Constant) -> Bounds:
    numbers = captured_indices(array)
    if numbers is None or not np.isfinite(numbers.astype(np.float64)).all():
        return UNKNOWN
    return Bounds(float(numbers.min()), float(numbers.max()), nan=False)
