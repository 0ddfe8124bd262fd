"""Run a loop in the step of another again, where the residuals are read that come of it."""

from __future__ import annotations

from jaxpr_opt.analysis.residuals.cuts import Residual
from jaxpr_opt.analysis.residuals.inner_loops import InnerLoop, cut_before
from jaxpr_opt.builders.residual_transfer import stacked, streamed
from jaxpr_opt.builders.residuals.recomputed_residuals import make_cut
from jaxpr_opt.ir.graph import Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def replay_inner(found: InnerLoop, rw: Rewriter) -> None:
    """Make the residuals by a copy of the inner loop that is told which steps to take, then cut
    the step before it.
    """
    scan, loop = found.scan, found.loop
    marks = stacked(found.skip.predicate, loop, rw)
    mapping: dict[Value, Value] = {}
    rw.clone(found.path, mapping, scan.body.terminator)
    copies = list(dict.fromkeys(mapping[v].op for op in found.path for v in op.results))
    copy = copies[0]
    assert isinstance(copy, Scan)
    told = streamed(marks, copy, rw)
    rw.replace(_counterpart(found.skip.predicate, loop, copy), told)
    again: dict[Value, Residual] = {
        stack.result: (stack._replace(value=mapping[value]), mapping[value])
        for stack, value in found.residuals
    }
    kept = [again[s.result][0] if s.result in again else s for s in scan.stacks]
    rw.set_scan(scan, stacks=kept)
    made = [op for op in copies if op is not None]
    make_cut(scan, cut_before(copy, made, list(again.values())), rw)
    for op in reversed(made):
        if not any(v.uses for v in op.results):
            rw.erase(op)


def _counterpart(value: Value, loop: Scan, copy: Scan) -> Value:
    """What a value of the step of a loop is in a copy of the loop."""
    if value.op is None:
        return copy.body.params[loop.body.params.index(value)]
    ops = zip(loop.body.ops, copy.body.ops, strict=True)
    made = next(there for here, there in ops if here is value.op)
    return made.results[value.op.results.index(value)]
