"""What an op reads."""

from __future__ import annotations

from jaxpr_opt.analysis.facts import remembered
from jaxpr_opt.ir import Op, Value


@remembered
def inputs(op: Op) -> tuple[Value, ...]:
    """Its operands, then what its regions read from outside."""
    return (*op.operands, *(v for region in op.regions for v in region.captures()))
