"""Algebra of single equations: what is known without looking past an operand's own operands.

Before::

    b = mul x 1.0
    i = convert_element_type[new_dtype=int32] p
    q = ne i 0
    y = select_n q x b

After::

    y = x

Each rule is a line of the table at the end, its law beside it.  Sound when

1. the law holds bit for bit, for NaN, infinities and the bounds of integers, up to the sign of
   zero: x + 0 is x, but x * 0 is not 0; x * 1 is x for real numbers, but not for complex ones
   (1 is 1 + 0i, and 0 * inf is NaN);
2. the replacement has the type of the result: shape, dtype, weak type and sharding.

Cost: every rule removes an op.
Source: the algebra of XLA's simplifier, where it is exact; done here for other passes to see
through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from jaxpr_opt.analysis.constants import uniform
from jaxpr_opt.ir import Op, Value
from jaxpr_opt.pipeline import Match, Pass
from jaxpr_opt.rewriter import Rewriter

Law = Callable[[Op], Value | tuple[Value, ...] | None]
"""What the result of an op is known to be, or simpler operands that give the same result."""

Laws = Mapping[str, tuple[Law, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Identity(Match):
    """The op's result is `value`; or, without one, it may read `operands` instead of its own."""

    value: Value | None
    operands: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Simplify(Pass):
    """Remove identities: x * 1, x + 0, a select with equal cases, a truth value made a number and
    back.
    """

    name: ClassVar[str] = "simplify"
    cleanup: ClassVar[bool] = True

    @property
    def laws(self) -> Laws:
        """By primitive."""
        return LAWS

    def find(self, op: Op) -> Iterator[Identity]:
        laws = self.laws.get(op.name)
        if laws is None or not op.result.uses:
            return
        for law in laws:
            known = law(op)
            if isinstance(known, tuple):
                yield Identity(op, f"{op.name} of {op.name} is one {op.name}", None, known)
                return
            if known is not None and known.aval == op.result.aval:  # (2)
                yield Identity(op, f"{op.name} changes nothing", known)
                return

    def refuse(self, match: Identity) -> str | None:  # noqa: ARG002
        return None  # a law that holds needs no leave

    def rewrite(self, match: Identity, rw: Rewriter) -> None:
        if match.value is not None:
            rw.replace(match.op.result, match.value)
            rw.erase(match.op)
        for index, operand in enumerate(match.operands):
            rw.set_operand(match.op, index, operand)


def is_real(value: Value) -> bool:
    """Whether these are numbers with one part."""
    return jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)


def _is_integral(value: Value) -> bool:
    return isinstance(value.dtype, np.dtype) and value.dtype.kind in "biu"


def neutral(number: int, *, right_only: bool = False) -> Law:
    """The law x . e = x, and e . x = x unless only the right operand may be neutral."""

    def law(op: Op) -> Value | None:
        left, right = op.operands
        if uniform(right) == number:
            return left
        return right if not right_only and uniform(left) == number else None

    return law


def absorbing(number: int) -> Law:
    """The law x . e = e."""
    return lambda op: next((v for v in op.operands if uniform(v) == number), None)


def idempotent(op: Op) -> Value | None:
    """The law x . x = x."""
    return op.operands[0] if op.operands[0] is op.operands[1] else None


def first_power(op: Op) -> Value | None:
    """The law x^1 = x."""
    return op.operands[0] if op.params["y"] == 1 else None


def involution(op: Op) -> Value | None:
    """The law f(f(x)) = x."""
    inner = op.operands[0].op
    same = inner is not None and inner.name == op.name and inner.params == op.params
    return inner.operands[0] if inner is not None and same else None


def when(condition: Callable[[Value], bool], law: Law) -> Law:
    """The law, for first operands of some types."""
    return lambda op: law(op) if condition(op.operands[0]) else None


def is_bool(value: Value) -> bool:
    """Whether these are truth values."""
    return bool(value.dtype == bool)


def selected(op: Op) -> Value | None:
    """A select on a known predicate, with equal cases, or of false and true."""
    which, *cases = op.operands
    known = uniform(which)
    if known is not None:
        return cases[int(known)] if 0 <= int(known) < len(cases) else None
    if all(_same(v, cases[0]) for v in cases[1:]):
        return cases[0]
    truth = len(cases) == 2 and uniform(cases[0]) == 0 and uniform(cases[1]) == 1
    return which if truth else None


def _same(a: Value, b: Value) -> bool:
    return a is b or (_is_integral(a) and uniform(a) is not None and uniform(a) == uniform(b))


def converted_back(op: Op) -> Value | None:
    """Back to where an exact conversion came from; a conversion to what it is already."""
    mid = op.operands[0]
    if mid.dtype == op.result.dtype:
        return mid
    source = _converted(mid)
    if source is None or not (_is_integral(source) and _is_integral(mid)):
        return None
    return source if np.can_cast(source.dtype, mid.dtype, "safe") else None


def _converted(value: Value) -> Value | None:
    made = value.op is not None and value.op.name == "convert_element_type"
    return value.op.operands[0] if value.op is not None and made else None


def truth(*numbers: int) -> Law:
    """Compared with one of these numbers, a truth value stays what it is: p != 0, (int)p == 1."""

    def law(op: Op) -> Value | None:
        left, right = op.operands
        if not any(uniform(right) == number for number in numbers):
            return None
        source = left if is_bool(left) else _converted(left)
        return source if source is not None and is_bool(source) else None

    return law


def clamped(op: Op) -> Value | None:
    """A clamp to [a, d] of a clamp to [b, c], where a <= b <= c <= d."""
    low, x, high = op.operands
    if x.op is None or x.op.name != "clamp":
        return None
    bounds = [uniform(v) for v in (low, x.op.operands[0], x.op.operands[2], high)]
    return x if all(b is not None for b in bounds) and bounds == sorted(bounds) else None


def selected_twice(op: Op) -> tuple[Value, ...] | None:
    """The law select(p, select(p, a, b), c) = select(p, a, c)."""
    which, *cases = op.operands
    seen = [
        v.op.operands[1 + i] if v.op and v.op.name == op.name and v.op.operands[0] is which else v
        for i, v in enumerate(cases)
    ]
    return (which, *seen) if seen != cases else None


LAWS: Laws = {
    "add": (neutral(0),),
    "add_any": (neutral(0),),
    "and": (idempotent, absorbing(0), when(is_bool, neutral(1))),
    "clamp": (clamped,),
    "convert_element_type": (converted_back,),
    "div": (when(is_real, neutral(1, right_only=True)),),
    "eq": (truth(1),),
    "ge": (truth(1),),
    "gt": (truth(0),),
    "integer_pow": (first_power,),
    "max": (idempotent,),
    "min": (idempotent,),
    "mul": (when(is_real, neutral(1)),),
    "ne": (truth(0),),
    "neg": (involution,),
    "not": (involution,),
    "or": (idempotent, neutral(0), when(is_bool, absorbing(1))),
    "select_n": (selected, selected_twice),
    "sub": (neutral(0, right_only=True),),
    "xor": (neutral(0),),
}
