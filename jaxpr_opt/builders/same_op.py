"""An op again, on other operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxpr_opt.bridge import compat
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


def on_others(
    op: Op,
    operands: Sequence[Value],
    rw: Rewriter,
    *,
    before: Op,
    params: dict[str, Any] | None = None,
) -> Value:
    """What an op makes of other operands, with its parameters unless others are given."""
    primitive, given = op.primitive, op.params if params is None else params
    assert primitive is not None

    def compute(*values: Any) -> Any:
        (result,) = compat.bind(primitive, values, given)
        return result

    return rw.typed(compute, op.result.aval, *operands, before=before)
