"""How fast the cost of a program grows with a size: exponents, in total and by source line.

The program is traced at several sizes; nothing is compiled or timed, so a machine's caches and
overheads play no part. The cost is split into terms, one for each primitive on each line. A term is
a product of shapes and trip counts: its exponent is clear at small sizes already, where that of a
sum is not (``1000 T + T^2`` at T = 64).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from jaxpr_opt.cost.work import works
from jaxpr_opt.frames import Frame
from jaxpr_opt.insight.liveness import peak_bytes
from jaxpr_opt.insight.powers import Limit, exponent
from jaxpr_opt.insight.saved import kept
from jaxpr_opt.ir.graph import Graph, Value
from jaxpr_opt.ir.places import user_frame
from jaxpr_opt.ir.traits import is_broadcast

Measure = Literal["residual_bytes", "work", "peak_bytes"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
NOTABLE = 0.01
"""A term matters if it grows by this share of the whole over the sizes that are looked at."""


class Place(NamedTuple):
    """What a term is about."""

    what: str
    """A primitive; or `arguments`, or `all that is live`."""
    frame: Frame | None = None
    iterated: bool = False
    """Whether it is the work of one iteration of a `while`, of which nobody knows the number."""


@dataclass(frozen=True, slots=True)
class Term:
    """What one primitive on one line comes to, at each size."""

    place: Place
    amounts: tuple[int, ...]
    exponent: float
    share: float
    """Of the whole, at the largest size."""
    matters: bool
    """Whether its growth shows in the whole."""


@dataclass(frozen=True, slots=True)
class Trend:
    """How one measure grows."""

    measure: Measure
    sizes: tuple[int, ...]
    amounts: tuple[int, ...]
    """The whole, at each size: bytes; of work, bytes touched and operations."""
    terms: tuple[Term, ...]
    """The fastest first, and of those the largest."""

    @property
    def exponent(self) -> float:
        """Of what grows fastest; of work in a `while`, in one iteration."""
        return max((term.exponent for term in self.terms if term.matters), default=0.0)

    @property
    def iteration(self) -> float | None:
        """Of what grows fastest in one iteration of a `while`; None if there is none."""
        inner = [term for term in self.terms if term.place.iterated]
        if not inner:
            return None
        least = NOTABLE * sum(term.amounts[-1] for term in inner)
        grown = (t.exponent for t in inner if t.amounts[-1] - t.amounts[0] > least)
        return max(grown, default=0.0)

    def together(self, terms: Iterable[Term]) -> tuple[int, ...]:
        """The total of some of the terms: their sum; of memory, the largest."""
        combine = max if self.measure == "peak_bytes" else sum
        return tuple(map(combine, zip(*(term.amounts for term in terms), strict=True)))

    def faster(self, limit: Limit) -> tuple[Term, ...]:
        """The terms that grow faster than a limit, the fastest first."""
        return tuple(
            term
            for term in self.terms
            if term.matters and not limit.allows(self.sizes, term.amounts)
        )


@dataclass(frozen=True, slots=True)
class Growth:
    """How a program grows with a size."""

    sizes: tuple[int, ...]
    trends: tuple[Trend, ...]
    """One for each of `MEASURES`, in their order."""

    def __getitem__(self, measure: Measure) -> Trend:
        return self.trends[MEASURES.index(measure)]


def growth(graphs: Mapping[int, Graph]) -> Growth:
    """How a program grows, from its graphs at two sizes or more; three are exact."""
    sizes = tuple(sorted(graphs))
    ordered = [graphs[size] for size in sizes]
    return Growth(sizes, tuple(_trend(measure, sizes, ordered) for measure in MEASURES))


def _trend(measure: Measure, sizes: tuple[int, ...], graphs: Sequence[Graph]) -> Trend:
    count, add_up = _COUNTS[measure]
    counted = [count(graph) for graph in graphs]
    totals = tuple(map(add_up, counted))
    terms = []
    for place in dict.fromkeys(place for amounts in counted for place in amounts):
        amounts = tuple(each[place] for each in counted)
        matters = amounts[-1] - amounts[0] > NOTABLE * totals[-1]
        share = amounts[-1] / (totals[-1] or 1)
        terms.append(Term(place, amounts, exponent(sizes, amounts), share, matters))
    terms.sort(key=lambda term: (-round(term.exponent, 1), -term.amounts[-1]))
    return Trend(measure, sizes, totals, tuple(terms))


Amounts = Counter[Place]


def _residuals(graph: Graph) -> Amounts:
    return _summed((_place(each.made), each.nbytes) for each in kept(graph))


def _work(graph: Graph) -> Amounts:
    return _summed(
        (Place(work.op.name, user_frame(work.op), work.loop is not None), work.amount)
        for work in works(graph)
    )


def _memory(graph: Graph) -> Amounts:
    """The peak; and, as what it is or may one day be made of, the largest array of each place."""
    found = Amounts({ALIVE: peak_bytes(graph), ARGUMENTS: sum(v.nbytes for v in graph.inputs)})
    for op in graph.walk():
        for value in () if is_broadcast(op) else op.results:
            place = _place(_made(value))
            found[place] = max(found[place], value.nbytes)
    return found


def _made(value: Value) -> Value:
    """Of what a loop or a branch gives, the innermost value that it is made of."""
    while value.op is not None and value.op.regions:
        inner = value.op.regions[-1].outputs[value.position]
        if inner.op is None:
            return value
        value = inner
    return value


ALIVE = Place("all that is live")
ARGUMENTS = Place("arguments")

_COUNTS: Mapping[Measure, tuple[Callable[[Graph], Amounts], Callable[[Amounts], int]]] = {
    "residual_bytes": (_residuals, Amounts.total),
    "work": (_work, Amounts.total),
    "peak_bytes": (_memory, lambda amounts: amounts[ALIVE]),
}
"""For each measure, its terms, and what they come to."""


def _summed(parts: Iterable[tuple[Place, int]]) -> Amounts:
    found = Amounts()
    for place, amount in parts:
        found[place] += amount
    return found


def _place(value: Value) -> Place:
    return ARGUMENTS if value.op is None else Place(value.op.name, user_frame(value.op))
