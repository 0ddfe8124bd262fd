"""Facts that follow from a truth value: if ``a | b`` is false, so are `a` and `b`; if ``(s != 2) &
(s != 3)`` is false, `s` is 2 or 3.
"""

from __future__ import annotations

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.bridge import dtypes
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


def numbers_if(value: Value, truth: bool) -> tuple[Value, frozenset[int]] | None:
    """The integers of which a truth value says, if it is this, that each is one of some numbers."""
    compared: set[Value] = set()
    numbers: set[int] = set()
    waiting = [(value, truth)]
    for each, told in waiting:
        op = each.op
        if op is None or each.dtype != bool or not each.size:
            return None
        if op.name in ("not", "or" if told else "and"):
            parts = ((v, told != (op.name == "not")) for v in op.operands)
            waiting += [part for part in parts if part not in waiting]
            continue
        number = uniform(op.operands[1]) if op.name == ("eq" if told else "ne") else None
        if number is None or not dtypes.is_integer(op.operands[0].dtype):
            return None
        compared.add(op.operands[0])
        numbers.add(int(number))
    return (compared.pop(), frozenset(numbers)) if len(compared) == 1 else None
