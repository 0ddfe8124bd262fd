"""Values under one predicate after another: incremental `Assumed`.

`Assumable(region).under({p: False})` gives the same answers as `Assumed(region, {p: False})`. A
walk without facts records which ops of the region, and of branches in it, read the answer of which
value. An op is evaluated again only if one of these answers has changed; such ops are evaluated in
program order, those of branches before the cond, and no others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import takewhile

from jaxpr_opt.analysis.steps.assume import Assumed, Facts, OneOf
from jaxpr_opt.analysis.steps.splats import Known
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Region, Value


class Assumable(Assumed):
    """A region's values without facts, or under those given, and which ops asked about each."""

    def __init__(
        self,
        region: Region,
        facts: Facts | None = None,
        *,
        linear: bool = False,
        finite: bool = False,
    ) -> None:
        self.places: dict[Op | Outcome, int] = {}
        """The ops of the region, numbered in program order, those of branches before the cond, and
        each of its results for itself.
        """
        self.asked: defaultdict[Value, dict[Op | Outcome, None]] = defaultdict(dict)
        """What asked about a value, or the loop of which the body did."""
        self._asking: Op | Outcome | None = None
        self.region, self.linear, self.finite = region, linear, finite
        self.walked = 0
        """How many ops were asked again."""
        super().__init__(region, facts or {}, linear=linear, finite=finite)
        self.ops = [*self.places]

    def under(self, facts: Facts) -> Assumed:
        """The region's values under facts."""
        return _Under(self, facts)

    def until_worn(self, predicates: Iterable[Value]) -> Iterator[Value]:
        """Predicates, until so many ops were asked again that others are not worth it any more."""
        return takewhile(lambda _: not self.is_worn, predicates)

    @property
    def is_worn(self) -> bool:
        """Whether so many ops were asked again that other facts are not worth it any more."""
        return self.walked > limits.WALKS * len(self.ops)

    def count_walked(self, ops: int) -> None:
        """Count so many ops as asked again."""
        self.walked += ops

    def __getitem__(self, value: Value) -> Known:
        if self._asking is not None:
            self.asked[value][self._asking] = None
        return super().__getitem__(value)

    def _learn(self, op: Op) -> None:
        around = self._begin(op)
        super()._learn(op)
        self._end(op, around)

    def _agreed(self, outcome: Outcome) -> Known:
        around = self._begin(outcome)
        known = super()._agreed(outcome)
        self._end(outcome, around)
        return known

    def _begin(self, asking: Op | Outcome) -> Op | Outcome | None:
        """Note who asks from now on; who asked before."""
        around, self._asking = self._asking, asking
        return around

    def _end(self, asking: Op | Outcome, around: Op | Outcome | None) -> None:
        self._asking = around
        self.places[asking] = len(self.places)


class _Under(Assumed):
    """What is not as it was without facts."""

    def __init__(self, before: Assumable, facts: Facts) -> None:
        self._before = before
        self._place = -1
        self._waiting: list[int] = []
        """A heap of the places of ops that are to be asked again."""
        linear, finite = before.linear, before.finite
        super().__init__(before.region, facts, linear=linear, finite=finite, around=before)

    def _walk(self, region: Region) -> None:
        if region is not self._before.region:
            return  # a branch, of which all that has changed is asked before the cond
        for value in (*self._known, *self._one_of):
            self._ask_again(value)
        while self._waiting:
            place = heappop(self._waiting)
            if place != self._place:
                self._place = place
                self._before.count_walked(1)
                self._ask(self._before.ops[place])

    def _ask(self, asked: Op | Outcome) -> None:
        """Ask an op, or what a cond gives, again."""
        op = asked.result.op if isinstance(asked, Outcome) else asked
        if op is None or not self._may_run(op):
            return
        if isinstance(op, Cond) and self._chosen(op) is None:
            if isinstance(asked, Outcome):
                self._tell(asked.result, self._agreed(asked))
        elif op is asked:
            self._learn(op)

    def _may_run(self, op: Op) -> bool:
        """Whether an op is in no branch that is known not to be taken."""
        region = op.region
        while region is not None and region is not self._before.region:
            cond = region.owner
            assert isinstance(cond, Cond)
            if self._chosen(cond) not in (None, region):
                return False
            region = cond.region
        return True

    def _note(self, value: Value, known: Known) -> None:
        super()._note(value, known)
        self._ask_again(value)

    def _note_numbers(self, value: Value, of: OneOf) -> None:
        super()._note_numbers(value, of)
        self._ask_again(value)

    def _ask_again(self, value: Value) -> None:
        for asked in self._before.asked.get(value, ()):
            if (place := self._before.places[asked]) > self._place:
                heappush(self._waiting, place)
