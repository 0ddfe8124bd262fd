"""The values that an op reads, remembered until the graph changes."""

from __future__ import annotations

from jaxpr_opt.ir import graph
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Value

_with_captures = remembered(graph.inputs)


def inputs(op: Op) -> tuple[Value, ...]:
    """The values that an op reads: its operands, then outer values that its regions read."""
    return _with_captures(op) if op.regions else op.operands
