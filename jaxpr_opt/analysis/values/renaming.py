"""Values that are other names of values."""

from __future__ import annotations

from jaxpr_opt.analysis.values.constants import is_weak
from jaxpr_opt.bridge import compat_types
from jaxpr_opt.ir.dataflow import source_through
from jaxpr_opt.ir.graph import Op, Value


def is_noop_cast(op: Op) -> bool:
    """Whether an op changes nothing but the weakness of the type."""
    same = ("convert_element_type", "copy")
    return op.name in same and op.operands[0].dtype == op.result.dtype


def original(version: Value) -> Value:
    """The value that a version is another name of."""
    return source_through(version, is_noop_cast)


def may_stand_for(known: Value, op: Op) -> bool:
    """Whether a value has the type of an op's result; that of an array which is only made weak or
    strong, but for that.
    """
    is_renamed = is_noop_cast(op) and op.result.shape and not _is_output(op)  # scalars count loops
    weak = is_weak(op.result if is_renamed else known)
    # Condition 2 of simplify.
    return bool(compat_types.with_weak_type(known.aval, weak) == op.result.aval)


def _is_output(op: Op) -> bool:
    """Whether a program returns what an op makes."""
    is_inside = op.region is not None and isinstance(op.region.owner, Op)
    return not is_inside and any(user.is_terminator for user in op.result.users)
