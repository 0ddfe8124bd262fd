"""Arrays all of whose elements are one known number."""

from __future__ import annotations

from typing import Any

from jaxpr_opt.ir import UNDEFINED, Constant, Value

_SPREAD = frozenset({"broadcast_in_dim", "reshape", "transpose", "expand_dims", "squeeze", "copy"})


def uniform(value: Value) -> Any:
    """The number that every element of `value` is known to be, else None; sees through broadcasts and reshapes."""
    while value.op is not None and value.op.name in _SPREAD:
        value = value.op.operands[0]
    return value.scalar if isinstance(value, Constant) else None


def is_undefined(value: Value) -> bool:
    """Whether any value will do."""
    return value.op is not None and value.op.name == UNDEFINED
