"""Whether values that are no longer computed together may be compared.

``k[i, i] + k[j, j] - 2 * k[i, j]`` is zero for one `i` and `j` if all are read from one array; if
each is computed where it is read, rounding may leave a little more, or less. Only an op that jumps
minds (`jaxpr_opt.analysis.values.rounding`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from jaxpr_opt.analysis.values.rounding import is_discontinuous
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.ir.dataflow import handed_to
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import LOCAL


def are_compared(values: Sequence[Value]) -> bool:
    """Whether an op that may jump depends on two of these values, by numbers that are rounded."""
    if len(values) < 2:
        return False
    made_of = {value: {value} for value in values}
    pending = list(values)
    while pending:
        value = pending.pop()
        for use in value.uses:
            if _may_jump(use.op) and _reads_two(use.op, made_of):
                return True
            for after in handed_to(use):
                known = made_of.setdefault(after, set())
                if dtypes.is_inexact(after.dtype) and not made_of[value] <= known:
                    known |= made_of[value]
                    pending.append(after)
    return False


def _may_jump(op: Op) -> bool:
    is_known = op.name in LOCAL or bool(op.regions) or op.is_terminator
    return is_discontinuous(op) or not is_known


def _reads_two(op: Op, made_of: Mapping[Value, Set[Value]]) -> bool:
    """Whether an op reads numbers that are made of two values."""
    return len(set[Value]().union(*(made_of.get(v, ()) for v in op.operands))) > 1
