"""Cotangents whose rows may be zeros: a mask drops their losses, or no index picks them."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpr_opt.analysis.steps.assume import Assumed
from jaxpr_opt.analysis.steps.given_masks import may_be_a_mask
from jaxpr_opt.analysis.steps.predicates import Counters
from jaxpr_opt.analysis.steps.skips import as_begun, find_ends, find_skips, stays
from jaxpr_opt.analysis.steps.splats import zero_of
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.linearity import carries_cotangents
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Constant, Op, Scan, Stream, Value
from jaxpr_opt.ir.traits import VIEWING

_ZERO_PRESERVING = VIEWING | {"and", "convert_element_type", "not", "or"}
_SUMS = frozenset({"add", "add_any", "concatenate", "sub"})
"""Zero only where all operands are."""
_COMPARISONS = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})


@dataclass(frozen=True, slots=True, eq=False)
class ZeroRows:
    """Streams of a transposed loop, and what its step makes of rows of zeros at the start."""

    scan: Scan
    streams: tuple[Stream, ...]
    values: Assumed
    counters: Counters


@remembered
def zero_rows(scan: Scan) -> ZeroRows | None:
    """The streams of a transposed loop in reverse that may begin with rows of zeros, with which a
    step changes nothing; None if there are none, or the loop says itself which steps it takes.
    """
    # Condition 1 of begin-at-cotangents.
    if not scan.reverse or not carries_cotangents(scan):
        return None
    seen: dict[Value, bool] = {}
    streams = tuple(s for s in scan.streams if _may_be_zero(s.operand, s.operand.size, seen))
    if not streams or find_skips(scan) or find_ends(scan):
        return None
    values, counters = as_begun(scan, {s.param: zero_of(s.param) for s in streams})
    # Condition 2 of begin-at-cotangents.
    if not stays(scan, values, counters):
        return None
    return ZeroRows(scan, streams, values, counters)


def _may_be_zero(array: Value, size: int, seen: dict[Value, bool], depth: int = 0) -> bool:
    """Whether what makes an array leaves rows zero that data tell; rows of so many elements."""
    op = array.op
    if op is None or op.regions or not dtypes.is_float(array.dtype) or depth > limits.OPS_OF_A_ROW:
        return False
    if array not in seen:
        seen[array] = False
        made = (_may_be_zero(v, size, seen, depth + 1) for v in op.operands)
        together = all if op.name in _SUMS else any
        seen[array] = _leaves_zeros(op, size) or (bool(op.operands) and together(made))
    return seen[array]


def _leaves_zeros(op: Op, size: int) -> bool:
    """Whether an op makes zeros where a mask of whole numbers, or an index, says so, or what may be
    a mask of so many elements.
    """
    if op.name == "select_n":
        has_zeros = any(uniform(case) == 0 for case in op.operands[1:])
        return has_zeros and compares_whole_numbers(op.operands[0])
    if op.name in ("dynamic_update_slice", "scatter", "scatter-add"):
        start = op.operands[2] if op.name == "dynamic_update_slice" else op.operands[1]
        return uniform(op.operands[0]) == 0 and not isinstance(start, Constant)
    return op.name == "mul" and any(
        v.size > 1 and (compares_whole_numbers(v) or may_be_a_mask(v, size)) for v in op.operands
    )


def compares_whole_numbers(mask: Value) -> bool:
    """Whether truth values, or numbers made of them, compare whole numbers, or are given."""
    pending, is_mask = [mask], False
    for value in pending:
        op = value.op
        is_mask |= value.dtype == bool
        if op is not None and op.name in _ZERO_PRESERVING:
            pending += [v for v in op.operands if uniform(v) is None and v not in pending]
        elif op is not None and op.name in _COMPARISONS:
            if not dtypes.is_integral(op.operands[0].dtype):
                return False
        elif value.dtype != bool or op is not None:
            return False
    return is_mask
