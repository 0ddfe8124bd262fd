"""Values that XLA may round otherwise where it recomputes them, and ops that must not see both
results.

XLA fuses an op with what is around it, and LLVM makes one instruction of a product and a sum, which
rounds once. So ``a * x + b``, computed again elsewhere, may differ in the last bit; a function of
`exp`, or a product of matrices, too. A continuous function does not mind. But ``x == max(x)`` is
false everywhere if the maximum was found among other values, and ``floor(t)`` jumps while
``t - floor(t)`` is that of the other `t`.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxpr_opt.bridge import dtypes
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Region, Value
from jaxpr_opt.ir.traits import (
    ARRANGING,
    COMPARISONS,
    DISCONTINUOUS,
    EXACT,
    PRODUCTS,
    SUMS,
    is_data_movement,
)


def is_discontinuous(op: Op) -> bool:
    """Whether a change of an operand's last bit may change the result by more than rounding.

    What is compared with itself is asked whether it is NaN, as in `jnp.logaddexp`.
    """
    if not any(dtypes.is_inexact(v.dtype) for v in op.operands):
        return False
    if op.name in COMPARISONS and op.operands[0] is op.operands[1]:
        return False
    if op.name == "convert_element_type":
        return not dtypes.is_inexact(op.result.dtype)
    return op.name in DISCONTINUOUS


@remembered
def may_differ(op: Op) -> bool:
    """Whether an op may give another result where its operands are recomputed."""
    return is_discontinuous(op) and op.region is not None and bool(rounded(op.operands, op.region))


def compares_rounded(op: Op, body: Region | None = None) -> bool:
    """Whether an op of a step compares a value with one computed from it, such as an array with its
    maximum, so that both must be rounded alike.
    """
    region = body or op.region
    if region is None or op.name not in COMPARISONS or not is_discontinuous(op):
        return False
    return all(rounded([value], region) for value in op.operands)


def rounded(values: Iterable[Value], body: Region) -> set[Value]:
    """The values that exact ops compute these from, in a step or its branches, and that may be
    rounded otherwise if they are computed again.
    """
    return {source for value in values for source in _rounded(value, body)}


@remembered
def _rounded(value: Value, body: Region) -> frozenset[Value]:
    """The same of one value."""
    op = value.op if body.defines(value) else None
    if op is None or is_discontinuous(op) or not dtypes.is_inexact(value.dtype):
        return frozenset()
    if _is_exact(op):
        return frozenset().union(*(_rounded(v, body) for v in op.operands))
    return frozenset({value} if _is_unstable(value, body) else ())


def exact_sources(value: Value) -> set[Value]:
    """A value, and those that exact ops compute it from."""
    pending, found = [value], {value}
    while pending:
        op = pending.pop().op
        new = set(op.operands) - found if op is not None and _is_exact(op) else set()
        pending.extend(new)
        found |= new
    return found


def _is_exact(op: Op) -> bool:
    """Whether an op rounds nothing."""
    if op.name == "convert_element_type":
        return bool(op.operands[0].dtype == op.result.dtype)
    return op.name in EXACT or op.name in ARRANGING or is_data_movement(op)


@remembered
def _is_unstable(value: Value, body: Region) -> bool:
    """Whether a value that a step makes may be rounded otherwise where it is made again."""
    op = value.op if body.defines(value) else None
    if op is None or not dtypes.is_inexact(value.dtype):
        return False
    return not is_stable(op, body) or any(_is_unstable(v, body) for v in op.operands)


def is_stable(op: Op, body: Region) -> bool:
    """Whether an op gives the same bits wherever it runs on the same bits."""
    if op.name in SUMS or op.name == "sub":
        return not adds_product(op, body)
    if op.name == "convert_element_type" and not dtypes.is_inexact(op.operands[0].dtype):
        return True
    return _is_exact(op) or op.name in {"div", "mul"}


def adds_product(op: Op, body: Region) -> bool:
    """Whether XLA may fuse a product and a sum into one instruction that rounds once."""
    sums = op.name in SUMS or op.name == "sub"
    return sums and any(_is_product(v, body) for v in op.operands)


def _is_product(value: Value, body: Region) -> bool:
    """Whether a value is a product, moved perhaps: one instruction may multiply and add."""
    while (op := value.op) is not None and body.defines(value):
        if op.name in PRODUCTS:
            return True
        if not op.operands or not (op.name == "neg" or is_data_movement(op)):
            return False
        value = op.operands[0]
    return False
