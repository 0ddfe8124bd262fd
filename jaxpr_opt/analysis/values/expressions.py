"""Whether two values are computed by the same expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxpr_opt.analysis.values.constants import identity
from jaxpr_opt.ir.graph import Value
from jaxpr_opt.ir.traits import is_mergeable


def same_expression(
    a: Value,
    b: Value,
    renamed: Mapping[Value, Value],
    alike: Callable[[Value, Value], bool] = lambda _, __: False,
) -> bool:
    """Whether two values are the same pure first-order ops on the same leaves, or on such as are
    `alike`, once values in `renamed` are replaced in the first.
    """
    pending, seen = [(a, b)], {(a, b)}
    while pending:
        left, right = pending.pop()
        if identity(renamed.get(left, left)) == identity(right) or alike(left, right):
            continue
        if not _same_op(left, right):
            return False
        assert left.op is not None and right.op is not None
        operands = zip(left.op.operands, right.op.operands, strict=True)
        added = dict.fromkeys(pair for pair in operands if pair not in seen)
        pending.extend(added)
        seen.update(added)
    return True


def _same_op(a: Value, b: Value) -> bool:
    """Whether the two are the same result of the same function, apart from its operands."""
    x, y = a.op, b.op
    if x is None or y is None or x.primitive is None or not is_mergeable(x) or not is_mergeable(y):
        return False
    return (
        x.primitive is y.primitive
        and x.params == y.params
        and x.source.ctx == y.source.ctx
        and a.position == b.position
        and len(x.operands) == len(y.operands)
    )
