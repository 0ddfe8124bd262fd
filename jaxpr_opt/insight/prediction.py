"""The seconds that the model predicts for a whole program.

`python -m bench predictions` compares them with measurements, and calibrates the model.
"""

from __future__ import annotations

from math import inf

from jaxpr_opt.analysis.liveness.fused import fused
from jaxpr_opt.cost.model import CostModel
from jaxpr_opt.cost.ops import cost
from jaxpr_opt.cost.work import Work, works
from jaxpr_opt.ir.graph import Graph, Op, Scan, Value
from jaxpr_opt.ir.nesting import runs


def predicted_seconds(graph: Graph, model: CostModel) -> float | None:
    """Seconds of a run; None if a `while` or an unknown primitive hides them."""
    done = works(graph)
    if any(work.loop is not None for work in done):
        return None
    seconds = sum(_seconds(work, model) for work in done) + _steps(graph, model)
    return None if seconds == inf else seconds


def _seconds(work: Work, model: CostModel) -> float:
    """The seconds that an op computes, and moves bytes unless a fusion hides it; a loop, and a
    stack, only moves.
    """
    op, times = work.op, work.times
    if work.stacks is not None:
        stacked = sum(stack.result.nbytes for stack in work.stacks.stacks)
        return model.passed(work.amount, stacked)
    if op.regions:
        return model.moved(work.amount) / 2
    computed = model.repeated([op])
    if computed == inf:
        return inf
    moved = max(work.amount // times - (cost(op).flops or 0) - _hidden(op), 0)
    return times * (computed + model.passed(moved, moved) / 2)


def _hidden(op: Op) -> int:
    """Bytes that an op hands to those it is fused with."""
    return sum(v.nbytes for v in (*op.operands, *op.results) if _is_hidden(v))


def _is_hidden(value: Value) -> bool:
    """Whether a value is made where it is read."""
    region = value.region
    return region is not None and value in fused(region.terminator).inside


def _steps(graph: Graph, model: CostModel) -> float:
    """Seconds of the steps of loops, whatever they do."""
    loops = [op for op in graph.walk() if isinstance(op, Scan)]
    return sum(model.loop_seconds(runs(op) * op.length, _largest(op)) for op in loops)


def _largest(loop: Scan) -> int:
    """Bytes of the largest array that a loop carries, reads or stacks."""
    return max((v.nbytes for v in (*loop.operands, *loop.results)), default=0)
