"""Arrays of which every element is one known number, and what ops make of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

import jax.numpy as jnp
import numpy as np

from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.analysis.windows.window_primitives import UPDATE
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import filled_by, first_right_side_of
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import COMBINING, VIEWING, linear_in


@dataclass(frozen=True, slots=True)
class Splat:
    """An array of which every element is `value`."""

    value: Any

    @property
    def is_zero(self) -> bool:
        return bool(self.value == 0)


Known = Value | Splat
"""What is known of a value: that it is a splat, another value, or itself."""


def zero_of(value: Value) -> Splat:
    """The fact that a value is zero."""
    return Splat(np.zeros((), value.dtype)[()])


def is_zero(known: Known) -> bool:
    """Whether every element is known to be zero."""
    return is_splat_of(known, 0)


def is_splat_of(known: Known, number: Any) -> TypeGuard[Splat]:
    """Whether every element is known to be this number."""
    return number is not None and isinstance(known, Splat) and bool(known.value == number)


def same(a: Known, b: Known) -> bool:
    """Whether two values are known to be the same."""
    if isinstance(a, Splat) and isinstance(b, Splat):
        return bool(a.value == b.value)
    return a is b


COMBINES = {"add": "add", "add_any": "add", "max": "max", "min": "min", "mul": "mul"}
"""Ops of two operands, of which one may be neutral, by how they combine them."""

_REDUCES = {
    "cummax": "max", "cummin": "min", "cumprod": "mul", "cumsum": "add",
    **{name: COMBINING[name] for name in ("reduce_prod", "reduce_sum")},
}  # fmt: skip
"""Ops that combine elements of one operand: neutral ones make the same."""

Rule = Callable[[Op, list[Known]], Known | None]


def _splat_of_first(op: Op, known: list[Known]) -> Known | None:
    """Moved or reduced, a splat stays one; a reduction of no elements is not its operand's."""
    return known[0] if isinstance(known[0], Splat) and 0 not in op.operands[0].shape else None


def _joined(_: Op, known: list[Known]) -> Known | None:
    is_one = all(isinstance(k, Splat) and same(k, known[0]) for k in known)
    return known[0] if is_one else None


def _converted(op: Op, known: list[Known]) -> Known | None:
    value, dtype = known[0], op.result.dtype
    if not isinstance(value, Splat):
        return value
    exact = dtypes.is_array(dtype) and not _may_overflow(value.value, dtype)
    return Splat(dtypes.converted(value.value, dtype)[()]) if exact else None


def _may_overflow(value: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a number is converted to an integer it may not be: NumPy and XLA differ there."""
    if not jnp.issubdtype(dtype, jnp.integer) or dtypes.is_integral(np.asarray(value).dtype):
        return False
    least, most = dtypes.limits(dtype)
    return not (abs(value) < most and (value >= 0 or least < 0))


def _selected(_: Op, known: list[Known]) -> Known | None:
    which, *cases = known
    if isinstance(which, Splat):
        return cases[min(max(int(which.value), 0), len(cases) - 1)]
    return cases[0] if all(same(cases[0], other) for other in cases[1:]) else None


def _combined(op: Op, known: list[Known]) -> Known | None:
    """One operand where the other is neutral."""
    a, b = known
    nothing = dtypes.neutral(op.result.dtype, COMBINES[op.name])
    if is_splat_of(a, nothing):
        return b
    return a if is_splat_of(b, nothing) else None


def _reduced(op: Op, known: list[Known]) -> Known | None:
    nothing = dtypes.neutral(op.result.dtype, _REDUCES[op.name])
    return known[0] if is_splat_of(known[0], nothing) else None


def _difference(_: Op, known: list[Known]) -> Known | None:
    a, b = known
    if is_zero(b):
        return a
    return Splat(a.value - b.value) if is_splat_of(a, 1) and is_splat_of(b, 1) else None


def _folded(fun: Callable[..., Any]) -> Rule:
    def rule(_: Op, known: list[Known]) -> Known | None:
        values = [k.value for k in known if isinstance(k, Splat)]
        return Splat(fun(*values)) if len(values) == len(known) else None

    return rule


def _compared(fun: Callable[..., Any], *, nan: bool) -> Rule:
    """A comparison: folded, or of a value with itself, if NaNs, which are `nan`, come out alike."""
    fold, equal = _folded(fun), bool(fun(0, 0))

    def rule(op: Op, known: list[Known]) -> Known | None:
        a, b = known
        if not isinstance(a, Value) or a is not b:
            return fold(op, known)
        is_told = equal == nan or dtypes.is_integral(a.dtype)
        return Splat(np.bool_(equal)) if is_told else None

    return rule


def _logical(fun: Callable[..., Any], absorbing: bool | None = None) -> Rule:
    """A connective of bools: folded, decided by one operand (`absorbing`), or the other one."""
    fold = _folded(fun)

    def rule(op: Op, known: list[Known]) -> Known | None:
        if op.result.dtype != bool:
            return None
        splats = [bool(k.value) for k in known if isinstance(k, Splat)]
        if absorbing is None or len(splats) != 1:
            return fold(op, known)
        other = next(k for k in known if not isinstance(k, Splat))
        return Splat(np.bool_(absorbing)) if splats[0] == absorbing else other

    return rule


RULES: dict[str, Rule] = {
    **dict.fromkeys(VIEWING | {"name", "split", "unstack"}, _splat_of_first),
    **dict.fromkeys(("reduce_and", "reduce_max", "reduce_min", "reduce_or"), _splat_of_first),
    **dict.fromkeys(COMBINES, _combined),
    **dict.fromkeys(_REDUCES, _reduced),
    "and": _logical(np.logical_and, absorbing=False),
    "concatenate": _joined,
    "stack": _joined,
    "clamp": _folded(lambda low, x, high: np.clip(x, low, high)),
    "convert_element_type": _converted,
    "eq": _compared(np.equal, nan=False),
    "ge": _compared(np.greater_equal, nan=False),
    "gt": _compared(np.greater, nan=False),
    "le": _compared(np.less_equal, nan=False),
    "lt": _compared(np.less, nan=False),
    "ne": _compared(np.not_equal, nan=True),
    "not": _logical(np.logical_not),
    "or": _logical(np.logical_or, absorbing=True),
    "select_n": _selected,
    "sub": _difference,
    "xor": _logical(np.logical_xor),
}
"""By primitive, what its result is, of what its operands are; None: nobody knows."""


def vanishes(op: Op, known: list[Known]) -> bool:
    """Whether a linear op's results are zero because enough of its operands are."""
    rule = linear_in(op)
    if rule == "any":
        return any(is_zero(k) for k in known)
    if rule == "all":
        return bool(known) and all(is_zero(k) for k in known)
    if rule == "first":
        return is_zero(known[0]) and (op.name != "gather" or _is_filled_by_zero(op))
    if rule == "cases":
        return all(is_zero(k) for k in known[1:])
    if rule == "last":
        return is_zero(known[-1])
    if rule == "right sides":
        return all(is_zero(k) for k in known[first_right_side_of(op) :])
    if rule == "base and updates":
        return is_zero(known[0]) and is_zero(known[UPDATE[op.name]])
    return False


def _is_filled_by_zero(gather: Op) -> bool:
    """Whether a gather of zeros gives zeros, also where it is out of range."""
    read = access(gather)
    return bool(filled_by(gather) == 0) or (read is not None and read.is_located)
