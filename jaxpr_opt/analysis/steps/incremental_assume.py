"""Values under one predicate after another: incremental `Assumed`.

`Assumable(region).under({p: False})` gives the same answers as `Assumed(region, {p: False})`. A
walk without facts records which ops of the region read the answer of which value. An op is
evaluated again only if one of these answers has changed; such ops are evaluated in program order,
and no others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import takewhile

from jaxpr_opt.analysis.steps.assume import Assumed
from jaxpr_opt.analysis.steps.splats import Known, Splat
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Region, Value


class Assumable(Assumed):
    """A region's values without facts, or under those given, and which ops asked about each."""

    def __init__(
        self,
        region: Region,
        facts: Mapping[Value, bool | Splat] | None = None,
        *,
        linear: bool = False,
        finite: bool = False,
    ) -> None:
        self.ops: list[Op] = []
        """The ops of the region, without those of regions in it, in program order."""
        self.asked: defaultdict[Value, dict[int, None]] = defaultdict(dict)
        """The places of the ops that asked about a value, or of which a region did."""
        self.region, self.linear, self.finite = region, linear, finite
        self.walked = 0
        """How many ops were asked again."""
        self._walking = True
        super().__init__(region, facts or {}, linear=linear, finite=finite)
        self._walking = False

    def under(self, facts: Mapping[Value, bool | Splat]) -> Assumed:
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
        if self._walking:
            self.asked[value][len(self.ops) - 1] = None
        return super().__getitem__(value)

    def _learn(self, op: Op) -> None:
        if op.region is self.region:
            self.ops.append(op)
        super()._learn(op)


class _Under(Assumed):
    """What is not as it was without facts."""

    def __init__(self, before: Assumable, facts: Mapping[Value, bool | Splat]) -> None:
        self._before = before
        self._place = -1
        self._waiting: list[int] = []
        """A heap of the places of ops that are to be asked again."""
        linear, finite = before.linear, before.finite
        super().__init__(before.region, facts, linear=linear, finite=finite, around=before)

    def _walk(self, region: Region) -> None:
        if region is not self._before.region:
            super()._walk(region)
            return
        for value in self._known:
            self._ask_again(value)
        while self._waiting:
            place = heappop(self._waiting)
            if place != self._place:
                self._place = place
                self._before.count_walked(1)
                self._learn(self._before.ops[place])

    def _note(self, value: Value, known: Known) -> None:
        super()._note(value, known)
        self._ask_again(value)

    def _ask_again(self, value: Value) -> None:
        for place in self._before.asked.get(value, ()):
            if place > self._place:
                heappush(self._waiting, place)
