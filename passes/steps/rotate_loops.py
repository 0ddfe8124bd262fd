"""Hand what the predicate of a loop computes on to the step, where the step computes it again.

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

What a broadcast, or basic arithmetic, makes of less is computed again. The rest of the predicate
stays where it is, unless it reads more of what is shared than the step does: then the step computes
all of it, and hands on the answer. Cost: what is handed on is carried. It is left where carrying
takes as long as computing it.
Source: loop rotation, as in LLVM, on structured loops.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.values.value_numbering import Numbering
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.windows import READS
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Carry, Op, Phase, Use, Value, While, is_sized
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import are_pure, is_arithmetic, is_broadcast, is_cheap, is_mergeable


@dataclass(frozen=True, slots=True, eq=False)
class Shared(Match):
    """Ops of a step that its predicate has, too, and what the rest of the step reads of them, each
    by the value of the predicate.
    """

    ops: tuple[Op, ...]
    twins: tuple[Op, ...]
    """The same ops of the predicate."""
    read: dict[Value, Value]


@dataclass(frozen=True)
class RotateLoops(Pass):
    """What a predicate and its step both compute -> carried from one to the other."""

    name: ClassVar[str] = "rotate-loops"
    phase: ClassVar[Phase] = "final"  # (3)
    anchors: ClassVar[tuple[type[Op], ...]] = (While,)

    def find(self, op: Op) -> Iterator[Shared]:
        assert isinstance(op, While)
        twins = _twins(op)
        ops = _worth_sharing(op, twins)
        read = {v: twins[v] for each in ops for v in each.results if _readers(v, ops)}
        if read:
            says = f"{ops[0].name} is computed by the predicate, and not again by the step"
            there = tuple(maker for each in ops if (maker := twins[each.results[0]].op) is not None)
            yield Shared(op, says, ops, there, read, about=next(iter(read)))

    def refuse(self, match: Shared) -> str | None:
        assert isinstance(match.op, While)
        if not are_pure(match.op.predicate.walk()):
            return "the predicate has effects"  # (2)
        model = cost_model()
        carried = model.moved(sum(v.nbytes for v in match.read))
        asked = model.started(1 + len(match.read)) + model.doubtful(carried)
        if _saved(match.ops) <= asked:
            return "carrying it takes as long as computing it again"
        return None

    def rewrite(self, match: Shared, rw: Rewriter) -> None:
        loop = match.op
        assert isinstance(loop, While)
        predicate, handed = loop.predicate, _handed(match)
        made = backward_slice(handed, lambda value: value.region is not predicate)
        begun = dict(zip(predicate.params, loop.operands, strict=True))
        rw.clone(made, begun, loop)
        params = {v: rw.new_value(v.aval, v.name) for v in handed}
        for here, there in match.read.items():
            rw.replace(here, params[there], _readers(here, match.ops).__contains__)
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
    assert isinstance(match.op, While)
    (answer,), read = match.op.predicate.outputs, dict.fromkeys(match.read.values())
    rest = backward_slice([answer], read.__contains__)
    return [*read] if set(rest).isdisjoint(match.twins) else [*(read | {answer: None})]


def _twins(loop: While) -> dict[Value, Value]:
    """Values of the step that the predicate computes, each with that of the predicate."""
    numbering, alike = Numbering(), dict[Hashable, Op]()
    params = zip(loop.predicate.params, loop.body.params, strict=True)
    numbering.leader.update(params)
    asks = [op for op in loop.predicate.ops if is_mergeable(op)]
    if all(_is_made_where_read(op) for op in asks):
        return {}
    for op in loop.body.ops:
        if is_mergeable(op):
            alike.setdefault(numbering.key(op), op)
    twins: dict[Value, Value] = {}
    for op in asks:
        if (twin := alike.get(numbering.key(op))) is not None:  # (1)
            numbering.leader.update(zip(op.results, twin.results, strict=True))
            twins.update(zip(twin.results, op.results, strict=True))
    return twins if all(is_sized(v.shape) for v in twins) else {}


def _worth_sharing(loop: While, twins: dict[Value, Value]) -> tuple[Op, ...]:
    """The ops of a step that are not to be computed again, in order."""
    ops = {op for v in twins if (op := v.op) is not None}
    for op in reversed(list(loop.body.ops)):
        if op in ops and _is_made_where_read(op) and any(_readers(v, ops) for v in op.results):
            shared = sum(v.nbytes for v in {*op.operands} if v.op in ops)
            if shared < op.result.nbytes or (is_broadcast(op) and shared == op.result.nbytes):
                ops.remove(op)
    return tuple(op for op in loop.body.ops if op in ops)


def _saved(ops: Sequence[Op]) -> float:
    """Seconds to compute ops of a step, of which XLA fuses elementwise ones."""
    model = cost_model()
    alone = [op for op in ops if not is_cheap(op)]
    reads = [op for op in alone if op.name in READS]
    others = [op for op in alone if op not in reads]
    found = sum(model.by_places(op.result) for op in reads)
    return max(model.repeated(ops), model.run(others)) + found


def _readers(value: Value, ops: Collection[Op]) -> list[Use]:
    """The uses of a value by other ops."""
    return [use for use in value.uses if use.op not in ops]


def _is_made_where_read(op: Op) -> bool:
    """Whether an op is computed where it is read."""
    return is_arithmetic(op) or is_broadcast(op)
