"""Hand what a loop has computed on to the next step, where that computes it again.

Before::

    x = while carry(x=x_0) { g = dot a x; gt (norm g) 0.001 } {
      g = dot a x
      yield sub x g
    }

After::

    x, _ = while carry(x=x_0, g=(dot a x_0)) { gt (norm g) 0.001 } {
      y = sub x g
      yield y, (dot a y)
    }

So a loop that goes on while the gradient is large computes one gradient a step, not two, and
``while norm(f(x) - x) > tol: x = f(x)`` evaluates `f` once. JAX itself writes such loops: a batch
asks each row for its predicate, to run while any row does, and once more in the step, to keep the
rows that have stopped. The predicate is computed as often as before, at the same values. Sound when

1. what the step takes from its carries is the same function of the same values as in the predicate
   (`jaxpr_opt.analysis.values.value_numbering`);
2. the predicate has no effects;
3. nothing differentiates the loop any more (the final phase), which would store what is carried.

A step of a scan or a `while` may compute what the step before it has computed of what it hands on::

    x, v = scan[n] carry(x=x_0, v=v_0) {       x, v, _ = scan[n] carry(x=x_0, v=v_0, g=(f x_0)) {
      u = sub v (f x)                            u = sub v g
      y = add x u                                y = add x u
      w = sub u (f y)                            h = f y
      yield carry(y, w)                          w = sub u h
    }                                            yield carry(y, w, h)
                                               }

So a leapfrog scheme evaluates forces once a step, and a Metropolis step the density of a proposal
only: it hands on ``select(p, x, y)``, and `f` of that is ``select(p, f(x), f(y))``. Sound when

4. what the next step takes from its carries is the same function of the same values, as in (1), and
   of nothing else that changes from step to step; a predicate chooses for all elements at once.

What a broadcast, or basic arithmetic, makes of less is computed again. The rest of the predicate
stays where it is, unless it reads more of what is shared than the step does: then the step computes
all of it, and hands on the answer. Cost: what is handed on is carried. It is left where carrying
takes as long as computing it.
Source: loop rotation, as in LLVM, on structured loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jax import lax

from jaxpr_opt.analysis.values.handed_on import (
    Handed,
    next_values,
    read_again,
    readers,
    seconds_saved,
    twins_of_predicate,
    worth_sharing,
)
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Carry, Op, Phase, Scan, Value, While
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import are_pure


@dataclass(frozen=True, slots=True, eq=False)
class Shared(Match):
    """Ops of a step that its predicate has, too, and what the rest of the step reads of them, each
    by the value of the predicate.
    """

    op: While
    ops: tuple[Op, ...]
    twins: tuple[Op, ...]
    """The same ops of the predicate."""
    read: dict[Value, Value]


@dataclass(frozen=True, slots=True, eq=False)
class Again(Match):
    """Ops of a step that the step before has computed, and what the rest of the step reads of them,
    each with what it is in the next step.
    """

    op: Scan | While
    ops: tuple[Op, ...]
    read: dict[Value, Handed]


@dataclass(frozen=True)
class RotateLoops(Pass[Shared | Again]):
    """What a predicate and its step both compute -> carried from one to the other."""

    name: ClassVar[str] = "rotate-loops"
    phase: ClassVar[Phase] = "final"  # (3)
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan, While)

    def find(self, op: Scan | While) -> Iterator[Shared | Again]:
        if isinstance(op, While):
            twins = twins_of_predicate(op)
            ops = worth_sharing(op.body, twins)
            read = {v: twins[v] for each in ops for v in each.results if readers(v, ops)}
            if read:
                says = f"{ops[0].name} is computed by the predicate, and not again by the step"
                made = (twins[each.results[0]].op for each in ops)
                there = tuple(maker for maker in made if maker is not None)
                yield Shared(op, says, ops, there, read, about=next(iter(read)))
        after = next_values(op)
        ops = worth_sharing(op.body, after)
        if handed := read_again(ops, after):
            says = f"{ops[0].name} is computed by the step before, and not again"
            yield Again(op, says, ops, handed, about=next(iter(handed)))

    def refuse(self, match: Shared | Again) -> str | None:
        loop = match.op
        if isinstance(loop, Scan) and loop.length < 2:
            return "no step comes before another"
        if isinstance(loop, While) and not are_pure(loop.predicate.walk()):
            return "the predicate has effects"  # (2)
        if not cost_model().is_worth_handing_on(match.read, seconds_saved(match.ops)):
            return "carrying it takes as long as computing it again"
        return None

    def rewrite(self, match: Shared | Again, rw: Rewriter) -> None:
        if isinstance(match, Again):
            _hand_on(match, rw)
            return
        loop = match.op
        predicate, handed = loop.predicate, _handed(match)
        made = backward_slice(handed, lambda value: value.region is not predicate)
        begun = dict(zip(predicate.params, loop.operands, strict=True))
        rw.clone(made, begun, loop)
        params = {v: rw.new_value(v.aval, v.name) for v in handed}
        for here, there in match.read.items():
            rw.replace(here, params[there], readers(here, match.ops).__contains__)
        for op in reversed(match.ops):
            rw.erase(op)
        nexts = dict(zip(predicate.params, loop.body.outputs, strict=True))
        rw.clone(made, nexts, loop.body.terminator)
        more = [Carry(begun[v], params[v], nexts[v], rw.new_value(v.aval)) for v in handed]
        for value in handed:
            param = rw.new_value(value.aval)
            rw.add_param(predicate, param)
            rw.replace(value, param)
        for op in reversed(list(predicate.ops)):
            if not op.is_terminator and not any(v.uses for v in op.results):
                rw.erase(op)
        carries = [*loop.carries, *more]
        rw.set_while(loop, carries, range(len(carries)))


def _handed(match: Shared) -> list[Value]:
    """The values of the predicate that are handed on: what the step reads; and the answer, if what
    else makes it would compute once more what is shared.
    """
    (answer,), read = match.op.predicate.outputs, dict.fromkeys(match.read.values())
    rest = backward_slice([answer], read.__contains__)
    return [*read] if set(rest).isdisjoint(match.twins) else [*(read | {answer: None})]


def _hand_on(match: Again, rw: Rewriter) -> None:
    """Carry what a step reads of ops that it is not to compute."""
    loop = match.op
    body, end = loop.body, loop.body.terminator
    begun = {c.param: c.init for c in loop.carries}
    rw.clone(backward_slice(match.read, lambda v: v.region is not body), begun, loop)
    params = {v: rw.new_value(v.aval, v.name) for v in match.read}
    for value, param in params.items():
        rw.replace(value, param, readers(value, match.ops).__contains__)
    more = []
    for value, handed in match.read.items():
        then = [params.get(v, v) for v in handed.values]
        after, *cases = then
        if cases:
            after = rw.typed(lax.select_n, value.aval, *then, before=end)
        more.append(Carry(begun[value], params[value], after, rw.new_value(value.aval)))
    for op in reversed(match.ops):
        rw.erase(op)
    carries = [*loop.carries, *more]
    if isinstance(loop, Scan):
        rw.set_scan(loop, carries=carries)
        return
    for value in match.read:
        rw.add_param(loop.predicate, rw.new_value(value.aval))
    rw.set_while(loop, carries, range(len(carries)))
