"""Whether a rewrite pays in memory: it is tried on a copy of the program."""

from __future__ import annotations

from collections.abc import Callable

from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.insight.temporaries import temporary_bytes
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.nesting import program_of
from jaxpr_opt.ir.rewriter import Rewriter, copy_graph


def takes_more(op: Op, rewrite: Callable[[Op, Rewriter], None]) -> bool:
    """Whether a program takes more temporary memory once an op of it has been rewritten, and that
    counts.
    """
    program = program_of(op)
    if program is None:
        return False
    copy = copy_graph(program)
    pairs = zip(program.walk(), copy.walk(), strict=True)
    same = next(there for here, there in pairs if here is op)
    rewrite(same, Rewriter(copy, same))
    more, model = temporary_bytes(copy) - temporary_bytes(program), cost_model()
    return not (model.is_no_line(more) or model.is_quick(more))
