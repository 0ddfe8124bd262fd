"""Value numbering: which values of a program are the same, in loops and branches, too."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from jaxpr_opt.analysis.values.constants import identity
from jaxpr_opt.ir.graph import Call, Constant, Op, Region, Remat, Scan, Value, While
from jaxpr_opt.ir.traits import is_arithmetic, is_broadcast, is_mergeable


class _Alike:
    """Ops of one sketch that are in scope, each by its key once there are two of them."""

    def __init__(self) -> None:
        self.alone: Op | None = None
        self.by_key: dict[Hashable, Op] = {}

    def drop_last(self) -> None:
        """Forget the op that came last."""
        if len(self.by_key) > 1:
            self.by_key.popitem()
        else:
            self.alone = None
            self.by_key.clear()


Scope = dict[Hashable, _Alike]
"""Ops by their sketch."""


class Numbering:
    """`leader`: values that another value, their leader, can stand for; `ops`: those all of whose
    results have one.
    """

    def __init__(self) -> None:
        self.leader: dict[Value, Value] = {}
        self.ops: list[Op] = []
        self.repeats: dict[Value, Value] = {}
        """What is repeated in some region, and arithmetic on it, by an equal value of any region:
        it may stay where it is, and what is made of it be read elsewhere."""
        self.repeated: dict[Hashable, Value] = {}

    def visit(self, region: Region, seen: Scope) -> None:
        """Number a region; `seen` are the ops that are in scope."""
        added: list[_Alike] = []
        for op in region.ops:
            if op.regions:
                self.inside(op, seen)
            # Condition 1 of merge-common-subexpressions.
            elif is_mergeable(op):
                if is_broadcast(op) or self.is_arithmetic_on_repeated(op):
                    self.repeats[op.result] = self.repeated.setdefault(self.key(op), op.result)
                alike = seen.setdefault(self.sketch(op), _Alike())
                first = self.first(op, alike)
                if first is not op:
                    self.ops.append(op)
                    self.leader.update(zip(op.results, first.results, strict=True))
                else:
                    added.append(alike)
        for alike in added:
            alike.drop_last()

    def inside(self, op: Op, seen: Scope) -> None:
        """Number the regions of an op, then the op's own slots (5)."""
        if isinstance(op, Scan):
            self.merge((self.of(s.operand), (s.param,)) for s in op.streams)
        for region in op.regions:
            # Condition 3 of merge-common-subexpressions.
            self.visit(region, {} if isinstance(op, Remat | Call) else seen)
        match op:
            case Scan():
                self.merge(
                    ((self.of(c.init), self.of(c.next)), (c.param, c.result)) for c in op.carries
                )
                self.merge((self.of(s.value), (s.result,)) for s in op.stacks)
            case While():
                params = zip(op.carries, op.predicate.params, strict=True)
                self.merge(
                    ((self.of(c.init), self.of(c.next)), (c.param, p, c.result)) for c, p in params
                )
            case Call():
                pass
            case _:
                yielded = zip(*(region.outputs for region in op.regions), strict=True)
                slots = zip(yielded, op.results, strict=True)
                self.merge((tuple(map(self.of, values)), (result,)) for values, result in slots)

    def merge(self, slots: Iterable[tuple[Hashable, tuple[Value, ...]]]) -> None:
        """Slots with the same key hold the same values."""
        seen: dict[Hashable, list[tuple[Value, ...]]] = {}
        for key, values in slots:
            alike = seen.setdefault(key, [])
            # Condition 5 of merge-common-subexpressions.
            first = next((each for each in alike if _types(each) == _types(values)), None)
            if first is None:
                alike.append(values)
            else:
                pairs = zip(values, first, strict=True)
                self.leader.update((old, new) for old, new in pairs if old.uses)

    def of(self, value: Value) -> Hashable:
        """A key that equal values share (2)."""
        # Condition 2 of merge-common-subexpressions.
        return self.repeats.get(value) or self.leader.get(value) or identity(value)

    def sketch(self, op: Op) -> Hashable:
        """A rough key: ops that compute the same have the same."""
        return (op.name, *(None if isinstance(v, Constant) else self.of(v) for v in op.operands))

    def first(self, op: Op, alike: _Alike) -> Op:
        """The one of these ops that computes the same; the op itself, now one of them, if none
        does.
        """
        if alike.alone is None:
            alike.alone = op
            return op
        if not alike.by_key:
            alike.by_key[self.key(alike.alone)] = alike.alone
        key = self.key(op)
        first = alike.by_key.setdefault(key, op)
        if first.region is not op.region and self.is_made_where_read(op):
            return alike.by_key.setdefault((key, op.region), op)
        return first

    def is_made_where_read(self, op: Op) -> bool:
        """Whether an op stays in its region: it costs nothing there."""
        # Condition 4 of merge-common-subexpressions.
        return is_broadcast(op) or (
            op.results[0] in self.repeats and any(v.region is op.region for v in op.operands)
        )

    def is_arithmetic_on_repeated(self, op: Op) -> bool:
        """Whether an op computes with what is repeated, and nothing else."""
        read = [v for v in op.operands if not isinstance(v, Constant)]
        return bool(read) and is_arithmetic(op) and all(v in self.repeats for v in read)

    def key(self, op: Op) -> Hashable:
        """A key that ops which compute the same share (1); the op itself if its parameters cannot
        be compared.
        """
        key = self._key(op)
        try:
            hash(key)
        except TypeError:
            return op
        return key

    def _key(self, op: Op) -> Hashable:
        params = tuple((name, _exact(value)) for name, value in op.params.items())
        return (
            op.primitive,
            op.source.ctx,
            params,
            *(self.of(v) for v in op.operands),
            *(v.aval for v in op.results),
        )


def _types(values: tuple[Value, ...]) -> list[Any]:
    return [value.aval for value in values]


def _exact(value: Any) -> Any:
    """A parameter, such that 0.0 and -0.0, 1 and 1.0 and True differ."""
    return (
        value
        if isinstance(value, tuple) or value is None
        else (type(value), repr(value) if isinstance(value, float) else value)
    )
