"""Values that are other names of values."""

from __future__ import annotations

from jaxpr_opt.ir.dataflow import source_through
from jaxpr_opt.ir.graph import Op, Value


def is_noop_cast(op: Op) -> bool:
    """Whether an op changes nothing but the weakness of the type."""
    same = ("convert_element_type", "copy")
    return op.name in same and op.operands[0].dtype == op.result.dtype


def original(version: Value) -> Value:
    """The value that a version is another name of."""
    return source_through(version, is_noop_cast)
