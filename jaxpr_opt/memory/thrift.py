"""Less memory for next to no time: what a program gets where nobody has given a budget.

The fastest program often stores what would take hardly longer to compute again.  So where a loop
stacks much, some passes run again on a copy of the program, at a small price of memory: a byte is
worth what it takes to store it beyond the cache, and a step may take a little longer (see
`CostModel.thrifty`).  The copy is taken if the whole program then takes much less memory.
"""

from __future__ import annotations

from jaxpr_opt.analysis.residuals.repeated_ops import stacked_bytes
from jaxpr_opt.cost.model import CostModel, cost_model, using
from jaxpr_opt.ir.graph import Graph, Scan
from jaxpr_opt.ir.nesting import runs
from jaxpr_opt.memory.planner import Candidate, Stage, rewritten, unchanged


def spared(graph: Graph, stage: Stage) -> Candidate | None:
    """A copy of a program that takes much less memory and hardly more time, if there is one."""
    loops = (op for op in graph.walk() if isinstance(op, Scan))
    if not any(cost_model().is_spared(stacked_bytes(loop) * runs(loop)) for loop in loops):
        return None
    models = cost_model().thrifty()
    if not any(_finds(stage, graph, model) for model in models):
        return None
    before = unchanged(graph)
    made = rewritten(before, stage, *models)
    return made if cost_model().is_spared_enough(made.nbytes, before.nbytes) else None


def _finds(stage: Stage, graph: Graph, model: CostModel) -> bool:
    with using(model):
        return bool(stage.find(graph))
