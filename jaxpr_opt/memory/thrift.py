"""Less memory for next to no time: what a program gets where nobody has given a budget.

The fastest program often stores what would take hardly longer to compute again.  So where a loop
stacks much, some passes run again on a copy of the program, at a small price of memory: a byte is
worth what it takes to store it beyond the cache, and a step may take a little longer (see
`CostModel.thrifty`).  The copy is taken if the whole program then takes much less memory.
"""

from __future__ import annotations

from typing import Any

from jaxpr_opt.analysis.residuals.repeated_ops import stacked_bytes
from jaxpr_opt.cost.model import cost_model, using
from jaxpr_opt.cost.prediction import runs
from jaxpr_opt.insight.journal import Journal, is_collected
from jaxpr_opt.insight.temporaries import temporary_bytes
from jaxpr_opt.ir.graph import Graph, Scan
from jaxpr_opt.ir.rewriter import copy_graph
from jaxpr_opt.memory.planner import Candidate, Stage


def spared(graph: Graph, stage: Stage) -> Candidate | None:
    """A copy of a program that takes much less memory and hardly more time, if there is one."""
    loops = (op for op in graph.walk() if isinstance(op, Scan))
    if not any(cost_model().is_spared(stacked_bytes(loop) * runs(loop)) for loop in loops):
        return None
    made, journal = graph, Journal(graph.phase, with_refusals=is_collected())
    snapshots: list[Any] = []
    for model in cost_model().thrifty():
        with using(model):
            if stage.find(made):
                made = copy_graph(made) if made is graph else made
                snapshots += stage.run(made, journal)
    if made is graph:
        return None
    nbytes = temporary_bytes(made)
    if not cost_model().is_spared_enough(nbytes, temporary_bytes(graph)):
        return None
    return Candidate(made, nbytes, journal, snapshots=tuple(snapshots))
