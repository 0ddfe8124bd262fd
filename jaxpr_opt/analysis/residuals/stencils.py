"""Arrays whose elements are combined with shifted ones: stencils, rolls, pads.

XLA fuses an elementwise op into what reads it, and computes it once for each shift. An element of
``f(x) + pad(f(x)[1:])`` computes `f` twice, and no instruction computes several elements, because
each of them first asks whether it is in range of the pad. If `f(x)` is stored, only a load is
repeated.
"""

from __future__ import annotations

from collections.abc import Iterable

from jaxpr_opt.ir.graph import Constant, Value
from jaxpr_opt.ir.traits import ARRANGING, ELEMENTWISE, REARRANGING

_PLACING = (ARRANGING | REARRANGING) - {"reshape", "squeeze", "stop_gradient"}
"""Ops that read an element at another index."""


def meets_neighbours(values: Iterable[Value]) -> bool:
    """Whether an elementwise op combines one of these values with a shifted array.

    Other elementwise ops may come before the shift, and after it.
    """
    pending = [(value, False) for value in values]
    seen = set(pending)
    while pending:
        value, is_moved = pending.pop()
        for op in value.users:
            is_elementwise = op.name in ELEMENTWISE
            if is_moved and is_elementwise and _joins(value, op.operands):
                return True
            if not (is_elementwise or op.name in _PLACING):
                continue
            moved = is_moved or not is_elementwise
            new = {(result, moved) for result in op.results} - seen
            pending.extend(new)
            seen |= new
    return False


def _joins(value: Value, operands: Iterable[Value]) -> bool:
    """Whether another operand is an array of the same shape, and not one repeated number."""
    return any(
        v is not value
        and not isinstance(v, Constant)
        and v.shape == value.shape
        and (v.op is None or v.op.name != "broadcast_in_dim")
        for v in operands
    )
