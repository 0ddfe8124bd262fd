"""Values that a step computes, and the predicate or the step before has computed already.

The step after one that computes ``f(y)`` and hands on ``x = y`` may compute ``f(x)`` again, as a
leapfrog scheme does with forces. If a step hands on ``select(p, x, y)``, as a Metropolis step does,
`f` of that is ``select(p, f(x), f(y))``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jaxpr_opt.analysis.values.constants import scalar_of
from jaxpr_opt.analysis.values.value_numbering import Numbering
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.windows import READS
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Region, Scan, Use, Value, While, is_sized
from jaxpr_opt.ir.traits import is_arithmetic, is_broadcast, is_cheap, is_mergeable


@dataclass(frozen=True, slots=True)
class Handed:
    """What a value of a step is in the next step, of values of this one: one, or two of which a
    predicate chooses.
    """

    cases: tuple[Value, ...]
    predicate: Value | None = None

    @property
    def values(self) -> tuple[Value, ...]:
        """All that must be known to hand it on."""
        return self.cases if self.predicate is None else (self.predicate, *self.cases)


@remembered
def next_values(loop: Scan | While) -> Mapping[Value, Handed]:
    """Values of a step that the next step computes again, with what they are then."""
    body = loop.body
    alike = _by_key(body)
    nexts = {c.param: c.next for c in loop.carries}
    found = {
        v: Handed((after,)) for v, after in _after(body, nexts, alike).items() if after is not v
    }
    predicate = _choosing(nexts.values())
    if predicate is None:
        return found
    chosen = [
        {param: _case(value, predicate, i) for param, value in nexts.items()} for i in range(2)
    ]
    first, second = (_after(body, each, alike) for each in chosen)
    for value in first.keys() & second.keys() - found.keys():
        cases = first[value], second[value]
        if cases != (value, value):
            found[value] = Handed(cases, predicate)
    return found


def _choosing(values: Iterable[Value]) -> Value | None:
    """The predicate by which most of these are one of two values."""
    predicates = Counter(_predicate_of(v) for v in values)
    del predicates[None]
    return predicates.most_common(1)[0][0] if predicates else None


def _predicate_of(value: Value) -> Value | None:
    op = value.op
    if op is None or op.name != "select_n" or op.operands[0].dtype != bool:
        return None
    return scalar_of(op.operands[0])  # condition 4 of rotate-loops


def _case(value: Value, predicate: Value, case: int) -> Value:
    """The value that a select gives where its predicate chooses this case."""
    op = value.op
    is_chosen = op is not None and _predicate_of(value) is predicate
    return op.operands[1 + case] if op is not None and is_chosen else value


def _by_key(region: Region) -> dict[Hashable, Op]:
    """Ops of a region by what they compute."""
    numbering, alike = Numbering(), dict[Hashable, Op]()
    for op in region.ops:
        if is_mergeable(op):
            alike.setdefault(numbering.key(op), op)
    return alike


def _after(
    body: Region, nexts: Mapping[Value, Value], alike: Mapping[Hashable, Op]
) -> dict[Value, Value]:
    """Values of a step that are the same function of `nexts` as others, with those."""
    numbering, found = Numbering(), dict[Value, Value]()
    numbering.leader.update(nexts)
    unknown = {v for v in body.params if v not in nexts}
    for op in body.ops:
        is_known = is_mergeable(op) and unknown.isdisjoint(op.operands)
        # Condition 4 of rotate-loops.
        twin = alike.get(numbering.key(op)) if is_known else None
        if twin is None or not all(is_sized(v.shape) for v in op.results):
            unknown.update(op.results)
        else:
            numbering.leader.update(zip(op.results, twin.results, strict=True))
            found.update(zip(op.results, twin.results, strict=True))
    return found


def twins_of_predicate(loop: While) -> dict[Value, Value]:
    """Values of the step that the predicate computes, each with that of the predicate."""
    asks = [op for op in loop.predicate.ops if is_mergeable(op)]
    if all(map(is_made_where_read, asks)):
        return {}
    numbering, alike = Numbering(), _by_key(loop.body)
    numbering.leader.update(zip(loop.predicate.params, loop.body.params, strict=True))
    twins: dict[Value, Value] = {}
    for op in asks:
        # Condition 1 of rotate-loops.
        if (twin := alike.get(numbering.key(op))) is not None:
            numbering.leader.update(zip(op.results, twin.results, strict=True))
            twins.update(zip(twin.results, op.results, strict=True))
    return twins if all(is_sized(v.shape) for v in twins) else {}


def worth_sharing(body: Region, values: Iterable[Value]) -> tuple[Op, ...]:
    """The ops of a step that are not to be computed again, in order, of those of these values."""
    ops = {op for v in values if (op := v.op) is not None}
    for op in reversed(list(body.ops)):
        if op in ops and is_made_where_read(op) and any(readers(v, ops) for v in op.results):
            shared = sum(v.nbytes for v in {*op.operands} if v.op in ops)
            if shared < op.result.nbytes or (is_broadcast(op) and shared == op.result.nbytes):
                ops.remove(op)
    return tuple(op for op in body.ops if op in ops)


def seconds_saved(ops: Sequence[Op]) -> float:
    """Seconds to compute ops of a step, of which XLA fuses elementwise ones."""
    model = cost_model()
    alone = [op for op in ops if not is_cheap(op)]
    reads = [op for op in alone if op.name in READS]
    others = [op for op in alone if op not in reads]
    found = sum(model.by_places(value) for op in reads for value in op.results)
    return max(model.repeated(ops), model.run(others)) + found


def readers(value: Value, ops: Collection[Op]) -> list[Use]:
    """The uses of a value by other ops."""
    return [use for use in value.uses if use.op not in ops]


def is_made_where_read(op: Op) -> bool:
    """Whether an op is computed where it is read."""
    return is_arithmetic(op) or is_broadcast(op)


def read_again(ops: Sequence[Op], after: Mapping[Value, Handed]) -> dict[Value, Handed]:
    """The results of these ops that other ops read, now or to compute them in the next step."""
    made = {v: None for op in ops for v in op.results}
    pending = [v for v in made if readers(v, ops)]
    found: dict[Value, Handed] = {}
    while pending:
        value = pending.pop()
        if value not in found:
            found[value] = after[value]
            pending += [v for v in after[value].values if v in made]
    return {v: found[v] for v in made if v in found}
