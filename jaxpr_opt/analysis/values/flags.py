"""Numbers that are always zero or one: truth values after arithmetic, as in ``alive * (x < tol)``.

They are found by induction over loops: a carry is such a number if it begins as one, and if a step
makes one, given that the carry is one before the step.  Numbers from zero to one, as discounts are
(``discount * 0.99``, ``0.99 ** step``), are found in the same way.  A zero here is never negative.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.induction import bounds
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import axes_of, exponent_of, filled_by
from jaxpr_opt.ir.dataflow import other_side, source_through
from jaxpr_opt.ir.facts import memory
from jaxpr_opt.ir.graph import Cond, Op, Remat, Scan, Value, While
from jaxpr_opt.ir.traits import VIEWING

_SAME_ELEMENTS = VIEWING | {
    "abs", "and", "concatenate", "convert_element_type", "cummax", "cummin", "cumprod", "max",
    "min", "mul", "or", "reduce_prod", "sign", "split", "square", "stack", "unstack", "xor",
}  # fmt: skip
"""Ops that make zeros and ones of such."""

_OF_SOME = frozenset({"reduce_max", "reduce_min"})
"""Ops that do so if there are elements."""

_OPERANDS = {
    "dynamic_slice": slice(0, 1),
    "dynamic_update_slice": slice(0, 2),
    "scatter": slice(0, None, 2),
    "select_n": slice(1, None),
}
"""Ops that take the elements of some operands."""

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ge", "gt", "le", "lt", "ne")
}


Parts = tuple[Value, ...] | None


def is_flag(value: Value) -> bool:
    """Whether all elements are zeros or ones, or truth values, in all steps of the loops around."""
    return _by_induction(value, _made_of)


def is_fraction(value: Value) -> bool:
    """Whether all elements are numbers from zero to one, in all steps of the loops around."""
    return _by_induction(value, _parts_of)


def _by_induction(value: Value, made_of_others: Callable[[Value], Parts]) -> bool:
    """Whether nothing that a value is made of says that it is not such a number.

    What is found of the values on the way is remembered, too.
    """
    known: dict[Value, bool] = memory(value, made_of_others)
    needs: dict[Value, Value | None] = {value: None}
    """What is looked at, and for which value."""
    pending = [value]
    while pending:
        each: Value | None = pending.pop()
        assert each is not None
        made_of = () if known.get(each) else None if each in known else made_of_others(each)
        if made_of is None:
            while each is not None:
                known[each], each = False, needs[each]
            return False
        new = [v for v in dict.fromkeys(made_of) if v not in needs]
        pending += new
        needs.update(dict.fromkeys(new, each))
    known.update(dict.fromkeys(needs, True))
    return True


def _made_of(value: Value) -> Parts:
    """Values such that, if they are flags, this one is, too; None if nothing says so."""
    # Condition 1 of carry-truth-values.
    if not _is_number(value):
        return () if value.dtype == bool else None
    if _is_one_of(value, 0, 1):
        return ()
    made_of = _kept(value)
    if made_of is not None or value.op is None:
        return made_of
    other = negated(value)
    return (other,) if other is not None else either(value.op)


def _parts_of(value: Value) -> Parts:
    """The same of numbers from zero to one."""
    if not _is_number(value):
        return () if value.dtype == bool else None
    number = uniform(value)
    if number is not None:
        return () if 0 <= number <= 1 and not np.signbit(number) else None
    made_of, op = _kept(value), value.op
    if made_of is not None or op is None:
        return made_of
    if op.name == "pow":
        low = bounds(source_through(op.operands[1], _is_converted))
        return op.operands[:1] if low is not None and low[0] >= 0 else None
    other = op.operands[0] if op.name == "sqrt" else negated(value)
    return (other,) if other is not None else None


def _is_converted(op: Op) -> bool:
    return op.name == "convert_element_type" or op.name in VIEWING


def _is_number(value: Value) -> bool:
    return value.dtype != bool and dtypes.is_real(value.dtype) and dtypes.has_zero(value.dtype)


def _kept(value: Value) -> Parts:
    """Values such that, if all of them are flags, or numbers from zero to one, so is this one; None
    if nothing says so.
    """
    op = value.op
    if op is None or isinstance(op, Remat | Scan | While):
        return _in_region(value)
    if isinstance(op, Cond):
        return op.outcomes[value.position].values
    if op.name in _SAME_ELEMENTS or (op.name in _OF_SOME and op.operands[0].size):
        return tuple(op.operands)
    if op.name in _OPERANDS:
        return tuple(op.operands[_OPERANDS[op.name]])
    if op.name == "integer_pow" and exponent_of(op) > 0:
        return tuple(op.operands)
    if op.name == "gather" and filled_by(op) in (0, 1):
        return tuple(op.operands[:1])
    return None


def _in_region(value: Value) -> tuple[Value, ...] | None:
    """The same of what a loop, or a checkpoint, begins a step with or ends with."""
    owner = value.op if value.op is not None or value.region is None else value.region.owner
    if isinstance(owner, Remat):
        sources = owner.body.outputs if value.op is owner else owner.operands
        return (sources[value.position],)
    if (rows := other_side(value)) is not None:
        return (rows,)
    if isinstance(owner, Scan | While):
        carry = owner.carries[value.position]
        return carry.init, carry.next
    return None


def either(op: Op) -> tuple[Value, ...] | None:
    """Two values such that, if both are flags, the result is one that is one where one of them is:
    ``max a b``, ``a + (1 - a) * b``, ``a + b - a * b``.
    """
    if op.name in ("max", "or"):
        return tuple(op.operands)
    if op.name == "sub":
        added, both = _operands(op.operands[0], "add"), _operands(op.operands[1], "mul")
        return added if added and set(added) == set(both) else None
    for a, rest in (op.operands, op.operands[::-1]) if op.name == "add" else ():
        product = _operands(rest, "mul")
        for left, b in (product, product[::-1]) if product else ():
            if negated(left) is a:
                return a, b
    return None


def negated(value: Value) -> Value | None:
    """The value `a` of ``1 - a``."""
    difference = _operands(value, "sub")
    return difference[1] if difference and _is_one_of(difference[0], 1) else None


def is_negation(op: Op) -> bool:
    """Whether an op is ``1 - a``."""
    return op.name == "sub" and _is_one_of(op.operands[0], 1)


def asked(op: Op) -> tuple[Value, bool] | None:
    """The number that a comparison tells apart from zero, if it is a flag, and whether the result
    is true where the flag is one: ``done > 0.5``, ``0 == done``.
    """
    compare = _COMPARISONS.get(op.name)
    if compare is None or not dtypes.has_zero(op.operands[0].dtype):
        return None
    numbers = [uniform(v) for v in op.operands]
    if (numbers[0] is None) == (numbers[1] is None):
        return None
    left, right = ((0, 1) if n is None else (n, n) for n in numbers)
    if_zero, if_one = map(compare, left, right)
    return (op.operands[numbers.index(None)], bool(if_one)) if if_zero != if_one else None


def as_truth(flag: Value) -> tuple[Callable[..., jax.Array], tuple[Value, ...]] | None:
    """How a flag that is made of flags is one: a function of these, which gives a truth value."""
    op = flag.op
    if op is None:
        return None
    if op.name in ("and", "min", "mul"):
        return lambda a, b: lax.bitwise_and(is_one(a), is_one(b)), op.operands
    if (parts := either(op)) is not None:
        return lambda a, b: lax.bitwise_or(is_one(a), is_one(b)), parts
    if (other := negated(flag)) is not None:
        return lambda a: lax.bitwise_not(is_one(a)), (other,)
    if op.name == "select_n":
        return lambda which, *cases: lax.select_n(which, *map(is_one, cases)), op.operands
    if op.name == "convert_element_type":
        return is_one, op.operands
    if op.name in _OF_SOME:
        reduce = lax.reduce_or if op.name == "reduce_max" else lax.reduce_and
        return lambda a: reduce(is_one(a), axes_of(op)), op.operands
    return None


@dataclass(frozen=True, slots=True)
class Source:
    """The root of some numbers, the moves applied to it, and whether it is subtracted from one."""

    root: Value
    """Truth values, which are converted; or numbers that are asked whether they are zero."""
    moves: tuple[Op, ...] = ()
    """The last one first."""
    is_negated: bool = False


def moved(moves: Sequence[Op], value: jax.Array) -> jax.Array:
    """A value, moved by these ops, of which the last one comes first."""
    for op in reversed(moves):
        assert op.primitive is not None
        value = op.primitive.bind(value, **op.params)
    return value


_ASKING = frozenset({"and", "eq", "ne", "not", "or", "reduce_or"})
"""Ops by which it is asked what numbers are."""


def source_of(number: Value) -> Source | None:
    """The truth values that zeros and ones are made of by conversions, moves and ``1 - x``; or the
    numbers that are asked whether they are zero, by moves and one such difference.
    """
    moves: list[Op] = []
    negations, is_converted = 0, False
    value = number
    while (op := value.op) is not None:
        other = op.operands[0] if op.name == "not" else negated(value)
        if other is not None:
            negations += 1
        elif op.name in VIEWING:
            moves.append(op)
        # Condition 3 of carry-truth-values.
        elif value.dtype == bool or not (op.name == "convert_element_type" or selects_one(op)):
            break
        else:
            is_converted = True
        value = other if other is not None else op.operands[0]
    root = asked_number(value)
    # Condition 3 of carry-truth-values.
    if root is not None and negations < 2 and not is_converted:
        return Source(root, tuple(moves), negations == 1)
    is_told = value.dtype == bool and number.dtype != bool and is_flag(number)
    return Source(value, tuple(moves), negations % 2 == 1) if is_told else None


def may_be_zero(factor: Value) -> bool:
    """Whether a factor is made of truth values, or of numbers that are asked about, by moves and
    differences from one.
    """
    if source_of(factor) is not None:
        return True
    while (op := factor.op) is not None and not is_question(factor):
        other = negated(factor)
        if other is None and op.name not in VIEWING:
            return False
        factor = op.operands[0] if other is None else other
    return factor.op is not None


def asked_number(value: Value) -> Value | None:
    """The number `r` of ``select_n (ne r 0.0) r r``, which is asked whether it is zero."""
    which, *cases = _operands(value, "select_n") or (value,)
    number = compared_with_zero(which)
    return number if number is not None and cases == [number, number] else None


def is_question(value: Value) -> bool:
    """Whether a select of two equal cases asks about them: its predicate is made of them."""
    which, *cases = _operands(value, "select_n") or (value,)
    if len(cases) != 2 or cases[0] is not cases[1] or which is cases[0]:
        return False
    pending = [which]
    for each in pending:
        op = each.op
        if op is not None and op.name in _ASKING:
            pending += [v for v in op.operands if v not in pending]
    return cases[0] in pending


def compared_with_zero(predicate: Value) -> Value | None:
    """The number `r` of ``ne r 0.0``."""
    operands = _operands(predicate, "ne")
    return operands[0] if operands and uniform(operands[1]) == 0 else None


def selects_one(op: Op) -> bool:
    """Whether an op selects one where truth values of its shape are true, else zero."""
    if op.name != "select_n" or op.operands[0].shape != op.result.shape:
        return False
    which, *cases = op.operands
    return which.dtype == bool and [uniform(v) for v in cases] == [0, 1]


def is_one(flag: jax.Array) -> jax.Array:
    """Whether elements of a flag are one."""
    return lax.ne(flag, lax.full_like(flag, 0, flag.dtype))  # whose type is not weak


def _operands(value: Value, name: str) -> tuple[Value, ...]:
    return tuple(value.op.operands) if value.op is not None and value.op.name == name else ()


def _is_one_of(value: Value, *numbers: int) -> bool:
    number = uniform(value) if _is_number(value) else None
    return number is not None and number in numbers and not np.signbit(number)
