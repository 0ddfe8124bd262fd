"""What a truth value says of its operands: if ``a | b`` is false, so are `a` and `b`."""

from __future__ import annotations

from jaxpr_opt.ir.graph import Value
from jaxpr_opt.ir.traits import LAYING

_SAME = LAYING | {"not"}

_TELLING = {False: _SAME | {"or", "reduce_or"}, True: _SAME | {"and", "reduce_and"}}
"""Ops of truth values of which a result tells what all operands are."""


def implied(value: Value, truth: bool) -> dict[Value, bool]:
    """A value of which all elements are true, or false, and the others that must be, then.  One
    without elements tells nothing.
    """
    found = {value: truth}
    pending = [value]
    for each in pending:
        op, known = each.op, found[each]
        if op is None or each.dtype != bool or op.name not in _TELLING[known] or not each.size:
            continue
        told = [v for v in op.operands if v.dtype == bool and v not in found]
        found |= dict.fromkeys(told, known != (op.name == "not"))
        pending += told
    return found
