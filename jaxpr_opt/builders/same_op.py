"""An op again, on other operands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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
    code = partial(bound, op, params=params)
    return rw.typed(code, op.result.aval, *operands, before=before)


def bound(op: Op, *values: Any, params: dict[str, Any] | None = None) -> Any:
    """The same, of JAX's values."""
    assert op.primitive is not None
    (result,) = compat.bind(op.primitive, values, op.params if params is None else params)
    return result
