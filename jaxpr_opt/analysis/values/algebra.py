"""Algebraic laws of single ops: what a result equals, given what made its operands.

`LAWS`, at the end, says which hold for which primitive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.constants import is_weak, strong, uniform
from jaxpr_opt.analysis.values.flags import (
    as_truth,
    asked,
    is_flag,
    is_one,
    is_question,
    moved,
    selects_one,
)
from jaxpr_opt.analysis.values.induction import bounds, decide
from jaxpr_opt.analysis.values.selected_cases import case_within
from jaxpr_opt.bridge import compat_types, dtypes
from jaxpr_opt.bridge.parameters import exponent_of
from jaxpr_opt.ir.graph import Op, Value, is_sized
from jaxpr_opt.ir.traits import LAYING


@dataclass(frozen=True, slots=True, eq=False)
class Plainer:
    """The same result, computed by other ops."""

    fun: Callable[..., jax.Array]
    operands: tuple[Value, ...]


Law = Callable[[Op], Value | tuple[Value, ...] | Plainer | None]
"""What the result of an op is known to be, simpler operands that give the same result, or simpler
ops.
"""


Laws = Mapping[str, tuple[Law, ...]]


def is_real(value: Value) -> bool:
    """Whether these numbers are not complex."""
    return dtypes.is_real(value.dtype) and has_zero(value)


def has_zero(value: Value) -> bool:
    """Whether the type has a zero; where it has none, XLA makes NaN of its least number."""
    return dtypes.has_zero(value.dtype)


def _is_of_floats(value: Value) -> bool:
    """Whether these numbers are floating-point numbers."""
    return is_real(value) and dtypes.is_inexact(value.dtype)


def _is_integral(value: Value) -> bool:
    return dtypes.is_integral(value.dtype)


def neutral(number: int, *, right_only: bool = False) -> Law:
    """The law x . e = x, and e . x = x unless only the right operand may be neutral."""

    def law(op: Op) -> Value | None:
        left, right = op.operands
        if uniform(right) == number:
            return left
        # Condition 1 of simplify.
        return right if not right_only and uniform(left) == number else None

    return law


def absorbing(number: int) -> Law:
    """The law x . e = e."""
    return lambda op: next((v for v in op.operands if uniform(v) == number), None)


def difference_of_same(op: Op) -> Plainer | None:
    """The law x - x = 0, of integers."""
    x, y = op.operands
    # Condition 3 of simplify.
    if x is not y or not _is_integral(x) or not is_sized(x.shape):
        return None
    if not compat_types.is_local(x.aval):
        return None  # a number of its own on each device
    shape, dtype = x.shape, x.dtype
    return Plainer(lambda: lax.full(shape, 0, dtype), ())


def idempotent(op: Op) -> Value | None:
    """The law x . x = x."""
    # Condition 1 of simplify.
    return op.operands[0] if op.operands[0] is op.operands[1] else None


def first_power(op: Op) -> Value | None:
    """The law x^1 = x."""
    # Condition 1 of simplify.
    return op.operands[0] if exponent_of(op) == 1 else None


def involution(op: Op) -> Value | None:
    """The law f(f(x)) = x."""
    inner = op.operands[0].op
    # Condition 1 of simplify.
    same = inner is not None and inner.name == op.name and inner.params == op.params
    return inner.operands[0] if inner is not None and same else None


def when(condition: Callable[[Value], bool], law: Law) -> Law:
    """The law, restricted to first operands of some types."""
    # Condition 1 of simplify.
    return lambda op: law(op) if condition(op.operands[0]) else None


def is_bool(value: Value) -> bool:
    """Whether these are booleans."""
    return bool(value.dtype == bool)


def selected(op: Op) -> Value | Plainer | None:
    """A select on a known predicate, with equal cases that it does not ask about, or of false and
    true.
    """
    which, *cases = op.operands
    known = uniform(which)
    # Condition 3 of simplify.
    known = decide(which) if known is None else known
    if known is not None:
        # Condition 1 of simplify.
        return _as_strong(cases[int(known)], op) if 0 <= int(known) < len(cases) else None
    # Condition 1 of simplify.
    if all(_same(v, cases[0]) for v in cases[1:]) and not is_question(op.result):
        return cases[0]
    # Condition 1 of simplify.
    truth = len(cases) == 2 and uniform(cases[0]) == 0 and uniform(cases[1]) == 1
    return which if truth else None


def _as_strong(value: Value, op: Op) -> Value | Plainer:
    """A value in the place of an op's result: a counter's type is weak, that of an index is not."""
    if not is_weak(value) or is_weak(op.result):
        return value
    # Condition 2 of simplify.
    return Plainer(strong, (value,))


def _same(a: Value, b: Value) -> bool:
    # Condition 1 of simplify.
    return a is b or (_is_integral(a) and uniform(a) is not None and uniform(a) == uniform(b))


def converted_back(op: Op) -> Value | None:
    """A conversion back from an exact conversion, or to the type that the operand has."""
    mid = op.operands[0]
    # Condition 1 of simplify.
    if mid.dtype == op.result.dtype:
        return mid
    source = _converted(mid)
    # Condition 1 of simplify.
    if source is None or not (_is_integral(source) and _is_integral(mid)):
        return None
    return source if _holds_all(mid.dtype, source) else None


def _holds_all(dtype: np.dtype, numbers: Value) -> bool:
    """Whether a type of integers has all of these, by their type or by their range."""
    # Condition 1 of simplify.
    if np.can_cast(numbers.dtype, dtype, "safe"):
        return True
    known = bounds(numbers) if dtype.kind in "iu" else None
    # Condition 3 of simplify.
    return known is not None and all(dtypes.holds(dtype, end) for end in known)


def _converted(value: Value) -> Value | None:
    made = value.op is not None and value.op.name == "convert_element_type"
    return value.op.operands[0] if value.op is not None and made else None


def _spread_truth(value: Value) -> tuple[Value, list[Op]] | None:
    """The truth value behind numbers that are it, and the ops that spread it out, last to first."""
    views: list[Op] = []
    while value.op is not None and not is_bool(value):
        # Condition 1 of simplify.
        if value.op.name in LAYING:
            views.append(value.op)
        # Condition 1 of simplify.
        elif not _makes_numbers_of_truth(value.op):
            return None
        value = value.op.operands[0]
    return (value, views) if is_bool(value) else None


def _makes_numbers_of_truth(op: Op) -> bool:
    """Whether an op converts truth values, or selects one where they are true, else zero."""
    return selects_one(op) or (op.name == "convert_element_type" and is_bool(op.operands[0]))


def compared(op: Op) -> Value | Plainer | None:
    """A comparison that leaves a boolean as it is, or negates it: p != 0, (int)p == 0."""
    question = asked(op)
    # Condition 1, 2 of simplify.
    if question is None or question[0].shape != op.result.shape:
        return None
    value, if_one = question
    found = _spread_truth(value)
    if found is None:
        return _by_logic(value, if_one)
    source, views = found
    if not if_one:
        return Plainer(lambda p: moved(views, lax.bitwise_not(p)), (source,))
    is_same = not views and is_weak(source) == is_weak(op.result)
    return source if is_same else Plainer(lambda p: moved(views, p), (source,))


def _by_logic(flag: Value, if_one: bool) -> Plainer | None:
    """A question to what is made of zeros and ones, as questions to these: max(a, b) > 0."""
    views: list[Op] = []
    # Condition 1 of simplify.
    is_flagged = is_flag(flag)
    while is_flagged and flag.op is not None and flag.op.name in LAYING:
        views.append(flag.op)
        flag = flag.op.operands[0]
    made = as_truth(flag) if is_flagged else None
    if made is None and not views:
        return None
    fun, operands = made or (is_one, (flag,))

    def ask(*operands: jax.Array) -> jax.Array:
        truth = fun(*operands)
        return moved(views, truth if if_one else lax.bitwise_not(truth))

    return Plainer(ask, tuple(operands))


def clamped(op: Op) -> Value | None:
    """A clamp of integers that are known to be within its limits."""
    low, x, high = (bounds(v) for v in op.operands)
    if low is None or x is None or high is None:
        return None
    # Condition 3 of simplify.
    return op.operands[1] if low[1] <= x[0] and x[1] <= high[0] else None


def selected_twice(op: Op) -> tuple[Value, ...] | None:
    """The law select(p, select(p, a, b), c) = select(p, a, c); also where the inner predicate says
    whether `p` is a certain number.
    """
    which, *cases = op.operands
    seen = []
    for case, value in enumerate(cases):
        inner = value.op if value.op is not None and value.op.name == op.name else None
        # Condition 1 of simplify.
        taken = case_within(inner, which, case, len(cases)) if inner is not None else None
        seen.append(value if inner is None or taken is None else inner.operands[1 + taken])
    return (which, *seen) if seen != cases else None


def selected_plainly(op: Op) -> Plainer | None:
    """A select between two cases by a boolean that was converted or negated before it was
    broadcast, as a select by that boolean.
    """
    which, *cases = op.operands
    found = _spread_truth(which) if len(cases) == 2 else None
    if found is None:
        return None
    root, views = found
    is_negated = False
    while root.op is not None and root.op.name in LAYING | {"not"}:
        is_negated ^= root.op.name == "not"
        views = [*views, root.op] if root.op.name != "not" else views
        root = root.op.operands[0]
    if is_bool(which) and not is_negated:
        return None
    operands = (root, *(reversed(cases) if is_negated else cases))
    return Plainer(lambda p, *cases: lax.select_n(moved(views, p), *cases), operands)


def added_apart(op: Op) -> Plainer | None:
    """The law select(p, a, 0) + select(p, 0, b) = select(p, a, b)."""
    selects = [v.op for v in op.operands if v.op is not None and v.op.name == "select_n"]
    if len(selects) < 2:
        return None
    (which, *left), (other, *right) = (each.operands for each in selects)
    # Condition 1 of simplify.
    if which is not other or len(left) != 2 or len(right) != 2:
        return None
    # Condition 2 of simplify.
    if any(v.shape != op.result.shape for v in op.operands):
        return None
    zero = [[uniform(v) == 0 for v in cases] for cases in (left, right)]
    # Condition 1 of simplify.
    if zero[0][1] and zero[1][0]:
        return Plainer(lax.select_n, (which, left[0], right[1]))
    # Condition 1 of simplify.
    return Plainer(lax.select_n, (which, right[0], left[1])) if zero[0][0] and zero[1][1] else None


def divided_choice(op: Op) -> Plainer | None:
    """The law select(p, a, b) / select(q, c, d) = select(p, select(q, a/c, a/d), select(q, b/c,
    b/d)) of numbers whose quotients are exact, as in the gradient of a maximum.
    """
    choices = [_chosen_numbers(v) for v in op.operands]
    if choices[0] is None or choices[1] is None:
        return None
    (which, above), (other, below) = choices[0], choices[1]
    dtype, shape = op.result.dtype, op.result.shape
    found = [[_quotient(a, b, dtype) for b in below] for a in above]
    quotients = [[q for q in row if q is not None] for row in found]
    # Conditions 1, 2 of simplify.
    if quotients != found or {which.shape, other.shape} != {shape}:
        return None

    def choose(p: jax.Array, q: jax.Array) -> jax.Array:
        numbers = [[lax.full(shape, each, dtype) for each in row] for row in quotients]
        is_one = [low == high for low, high in quotients]
        cases = zip(numbers, is_one, strict=True)
        return lax.select_n(p, *(row[0] if one else lax.select_n(q, *row) for row, one in cases))

    return Plainer(choose, (which, other))


def _chosen_numbers(value: Value) -> tuple[Value, list[float]] | None:
    """What chooses between two numbers for each element, and the numbers."""
    op = value.op
    if op is None or op.name != "select_n" or len(op.operands) != 3:
        return None
    numbers = [uniform(v) for v in op.operands[1:]]
    is_known = is_bool(op.operands[0]) and None not in numbers
    return (op.operands[0], [float(each) for each in numbers]) if is_known else None


def _quotient(a: float, b: float, dtype: np.dtype) -> float | None:
    """The quotient of two numbers; None if it is not exact."""
    # Condition 1 of simplify.
    if not (np.isfinite(a) and np.isfinite(b) and b > 0) or np.signbit(a):
        return None
    found = float(np.asarray(a / b).astype(dtype))
    return found if found * b == a and (found > 0) == (a > 0) else None


LAWS: Laws = {
    "add": (neutral(0), added_apart),
    "add_any": (neutral(0), added_apart),
    "and": (idempotent, absorbing(0), when(is_bool, neutral(1))),
    "clamp": (clamped,),
    "convert_element_type": (converted_back,),
    "div": (when(is_real, neutral(1, right_only=True)), when(_is_of_floats, divided_choice)),
    "eq": (compared,),
    "ge": (compared,),
    "gt": (compared,),
    "integer_pow": (first_power,),
    "le": (compared,),
    "lt": (compared,),
    "max": (when(has_zero, idempotent),),
    "min": (when(has_zero, idempotent),),
    "mul": (when(is_real, neutral(1)),),
    "ne": (compared,),
    "neg": (when(has_zero, involution),),
    "not": (involution,),
    "or": (idempotent, neutral(0), when(is_bool, absorbing(1))),
    "select_n": (selected, selected_twice, selected_plainly),
    "sub": (neutral(0, right_only=True), difference_of_same),
    "xor": (neutral(0),),
}
