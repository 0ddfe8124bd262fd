"""Whether two values are computed alike."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxpr_opt.ir import Constant, Value
from jaxpr_opt.traits import is_pure


def same_expression(a: Value, b: Value, renamed: Mapping[Value, Value]) -> bool:
    """Whether `b` is `a` with `renamed` values put in: same pure first-order ops on the same leaves."""
    if renamed.get(a, a) is b:
        return True
    if isinstance(a, Constant) and isinstance(b, Constant):
        return bool(a.aval == b.aval and np.array_equal(a.value, b.value))
    x, y = a.op, b.op
    if x is None or y is None or x.regions or y.regions or not is_pure(x) or not is_pure(y):
        return False
    return (
        x.primitive is y.primitive
        and x.params == y.params
        and x.results.index(a) == y.results.index(b)
        and len(x.operands) == len(y.operands)
        and all(same_expression(i, j, renamed) for i, j in zip(x.operands, y.operands, strict=True))
    )
