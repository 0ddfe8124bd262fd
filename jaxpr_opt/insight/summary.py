"""The figures at the end of a diff: the size of a program and its estimated cost."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpr_opt.cost.ops import cost
from jaxpr_opt.insight.liveness import peak_bytes
from jaxpr_opt.insight.saved import kept_bytes
from jaxpr_opt.ir.graph import Call, Cond, Graph, Remat, Scan, Use, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Sizes and estimated costs of a graph; None is unknown, never zero."""

    equations: int
    """Ops, those inside loops and branches counted once."""
    residual_bytes: int
    """What the gradient keeps, as `kept_bytes` counts it."""
    peak_bytes: int
    """The most that is live at one moment, if ops run in order and nothing is fused."""
    flops: int | None
    """Floating point operations; None if a `while` or an unknown primitive hides them."""


def summarize(graph: Graph) -> Summary:
    """The figures of a graph."""
    return Summary(
        equations=sum(not op.is_terminator for op in graph.walk()),
        residual_bytes=kept_bytes(graph),
        peak_bytes=peak_bytes(graph),
        flops=cost(graph.body).flops,
    )


def stacked_bytes(graph: Graph) -> int:
    """Bytes of the stacks that leave their loop to be streamed into another or returned.

    A stack of a nested loop that becomes a row of an outer stack counts there, and only there.
    """
    stacks = (y.result for op in graph.walk() if isinstance(op, Scan) for y in op.stacks)
    return sum(stack.nbytes for stack in stacks if _is_read_by_row(stack))


def _is_read_by_row(value: Value) -> bool:
    """Whether a stream or the program's `return` reads the value, directly or through a region."""
    return any(_reads_row(use) for use in value.uses)


def _reads_row(use: Use) -> bool:
    op, index = use
    if isinstance(op, Scan):
        return index >= len(op.carries)
    if not op.is_terminator or op.region is None:
        return False
    owner = op.region.owner
    if isinstance(owner, Graph):
        return True
    return isinstance(owner, Cond | Remat | Call) and _is_read_by_row(owner.results[index])
