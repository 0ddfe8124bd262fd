"""A smaller program that still goes wrong: ops are replaced by something simpler, one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import jax.numpy as jnp

from fuzz.mutations.places import copy_of, is_plain, may_change, visible
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.insight.journal import Journal
from jaxpr_opt.ir.graph import Cond, Graph, Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.passes.laws.eliminate_dead_code import EliminateDeadCode

Change = Callable[[Graph, Rewriter], bool]
CLEANER = Pipeline(((EliminateDeadCode(),),))


def shrunk(graph: Graph, fails: Callable[[Graph], bool], seconds: float = 20.0) -> Graph:
    """The smallest program found in that time for which `fails` still holds."""
    deadline = time.monotonic() + seconds
    progress = True
    while progress and time.monotonic() < deadline:
        progress = False
        number = 0
        while time.monotonic() < deadline:
            smaller = _candidate(graph, number)
            if smaller is None:
                break
            if size(smaller) < size(graph) and fails(smaller):
                graph, progress = smaller, True
            else:
                number += 1
    return graph


def size(graph: Graph) -> tuple[int, int]:
    """What gets smaller: ops, then what they read that is not a constant, and what is returned."""
    ops = list(graph.walk())
    return len(ops), sum(v.region is not None for op in ops for v in op.operands)


def _candidate(graph: Graph, number: int) -> Graph | None:
    """The program after one change, by number."""
    made, rw = copy_of(graph)
    change = next((c for k, c in enumerate(_changes(made)) if k == number), None)
    if change is None:
        return None
    change(made, rw)
    CLEANER.apply(made, Journal(made.phase))
    return made


def _changes(graph: Graph) -> Iterator[Change]:
    outputs = len(graph.outputs)
    if outputs > 1:
        yield from (_with_outputs([i]) for i in range(outputs))
    if outputs > 2:
        yield from (_with_outputs([k for k in range(outputs) if k != i]) for i in range(outputs))
    for op in reversed(list(graph.walk())):
        for value in op.results:
            if may_change(op) and value.uses:
                yield from _simpler(op, value)
        if isinstance(op, Scan):
            yield from _fixed(op)
        if isinstance(op, Cond) and may_change(op):
            yield from (_branch(op, k) for k in range(len(op.branches)))


def _with_outputs(kept: list[int]) -> Change:
    def change(graph: Graph, rw: Rewriter) -> bool:
        rw.set_outputs(graph.body, [graph.outputs[i] for i in kept])
        return True

    return change


def _simpler(op: Op, value: Value) -> Iterator[Change]:
    """Take an operand, a parameter or zero in place of a result."""
    alike = [v for v in op.operands if v.aval == value.aval]
    alike += [v for v in visible(op) if v.op is None and v.aval == value.aval][:2]
    for other in alike:
        yield lambda _, rw, new=other: rw.replace(value, new) or True
    if is_plain(value) and not (op.name == "broadcast_in_dim" and not op.operands[0].region):

        def zero(_: Graph, rw: Rewriter) -> bool:
            new = rw.typed(lambda: jnp.zeros(value.shape, value.dtype), value.aval, before=op)
            rw.replace(value, new)
            return True

        yield zero


def _fixed(scan: Scan) -> Iterator[Change]:
    """Take what a loop begins with in place of what it carries."""
    for carry in scan.carries:
        if carry.next is not carry.param:

            def change(_: Graph, rw: Rewriter, carry: object = carry) -> bool:
                fixed = [
                    c._replace(next=c.param) if c.param is carry.param else c  # type: ignore[attr-defined]
                    for c in scan.carries
                ]
                rw.set_scan(scan, carries=fixed)
                return True

            yield change


def _branch(cond: Cond, which: int) -> Change:
    """Take one branch of a cond."""

    def change(_: Graph, rw: Rewriter) -> bool:
        outputs = rw.inline(cond.branches[which], (), before=cond)
        for result, value in zip(cond.results, outputs, strict=True):
            rw.replace(result, value)
        return True

    return change
