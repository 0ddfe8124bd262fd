"""Choose a program for a memory budget.

A *budget stage* is passes that trade seconds for memory as the cost model says: what a byte is
worth (`CostModel.byte`), and which part of what straight-line code holds it is to hold
(`CostModel.part`).

- Loops: where a pass would do something else at another price, the stage runs on a copy of the
  graph at that price.
- Straight-line code: what passes find on such a copy says in which ways memory may be traded
  (`Trade`), with bytes, seconds and operations, and nothing is rewritten.

Together these are *offers*.  They depend on the graph alone, not on the budget.  The planner tries
them in one order, of rising seconds and operations.  It makes a program of an offer only if it is
predicted to fit the budget, and takes the first one that does fit.  What does not fit a budget
would not fit a smaller one either, so a larger budget never costs more predicted seconds, nor
operations.  Before the planner gives up, it makes the smallest few offers in any case: which one is
the smallest is known only when they are made.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

from jaxpr_opt.cost import limits
from jaxpr_opt.cost.known_seconds import known_seconds
from jaxpr_opt.cost.model import CostModel, cost_model, using
from jaxpr_opt.cost.ops import cost
from jaxpr_opt.insight.journal import Journal, is_collected
from jaxpr_opt.insight.prediction import predicted_seconds
from jaxpr_opt.insight.temporaries import temporary_bytes
from jaxpr_opt.ir.graph import Graph, Scan
from jaxpr_opt.ir.rewriter import copy_graph
from jaxpr_opt.memory.budget import Budget


class Trade(NamedTuple):
    """A way to take less memory in some straight-line code."""

    part: float
    """What it holds at its peak, of what it holds now."""
    seconds: float
    """What is computed again takes."""
    saved: int = 0
    """Bytes that it holds less."""
    flops: int = 0
    """Floating point operations that are computed again."""


class Found(Protocol):
    """What a pass of the budget stage would do somewhere."""

    @property
    def says(self) -> str:
        """In words."""

    @property
    def trades(self) -> Sequence[Trade]:
        """Other ways to trade seconds for memory there, the fastest first."""


class Stage(Protocol):
    """The budget stage: passes that do what the cost model says."""

    def find(self, graph: Graph, *, is_straight: bool = False) -> Sequence[Found]:
        """The matches of its passes on a graph as it is, or only in straight-line code."""

    def run(self, graph: Graph, journal: Journal) -> Sequence[Any]:
        """Run it on a graph, in place; snapshots, if they are taken."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A program that a budget may buy."""

    graph: Graph
    nbytes: int
    """Temporary memory at its peak, as far as it is known."""
    journal: Journal
    """What the budget stage did."""
    predicted: float | None = None
    """Seconds of a run, where they have been predicted."""
    price: float = 0.0
    """Seconds that a byte was worth."""
    snapshots: tuple[Any, ...] = ()

    @functools.cached_property
    def seconds(self) -> float:
        """Predicted seconds of a run; of what is known, where a `while` or an unknown primitive
        hides some.
        """
        if self.predicted is not None:
            return self.predicted
        known = predicted_seconds(self.graph, cost_model())
        return known_seconds(self.graph.body.ops, cost_model()) if known is None else known

    @functools.cached_property
    def flops(self) -> int | None:
        """Floating point operations of a run; None if they are not known."""
        return cost(self.graph.body).flops


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A candidate that may be made of another."""

    base: Candidate
    part: float
    """Of what straight-line code holds at its peak, what it is to hold."""
    nbytes: int
    seconds: float
    flops: int
    """As far as they are known."""

    def made(self, stage: Stage) -> Candidate:
        """The candidate."""
        if self.part == 1:
            return replace(self.base, predicted=self.seconds)
        made = rewritten(self.base, stage, cost_model().at(self.base.price, self.part))
        return replace(made, predicted=self.seconds)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a budget may buy, the fastest program first, and what it buys."""

    name: str
    frontier: tuple[Candidate, ...]
    """What was made, the program without a budget first; all of it if somebody is told."""
    chosen: Candidate
    limit: int | None
    """Bytes that the budget allows; None if the least is asked for."""

    @property
    def is_met(self) -> bool:
        return self.limit is None or self.chosen.nbytes <= self.limit


def plan(
    graph: Graph, budget: Budget, stage: Stage, others: Callable[[], Iterable[Graph]] = tuple
) -> Plan:
    """The program that a budget buys; the smallest if none fits.  The `others` compute the same;
    they are made only if the program does not fit as it is.
    """
    told = _listener.get()
    first = unchanged(graph if told is None else copy_graph(graph))
    is_least = budget.nbytes is None and budget.part is None
    limit = None if is_least else budget.limit(first.nbytes)
    fits = limit is not None and first.nbytes <= limit
    if fits and told is None:
        return Plan(graph.name, (first,), first, limit)
    shelf = _Shelf(_offers(first, stage, others), stage)
    chosen = first if fits else shelf.chosen(limit, first)
    if told is None:
        return Plan(graph.name, (first,), chosen, limit)
    told.append(Plan(graph.name, shelf.frontier(first), chosen, limit))
    return replace(told[-1], chosen=replace(chosen, graph=copy_graph(chosen.graph)))


def unchanged(graph: Graph) -> Candidate:
    """A program as it is."""
    return Candidate(graph, temporary_bytes(graph), Journal(graph.phase, with_refusals=False))


def rewritten(base: Candidate, stage: Stage, *models: CostModel) -> Candidate:
    """A copy of a candidate, rewritten by the stage at some prices one after the other."""
    copy, journal = copy_graph(base.graph), Journal(base.graph.phase, with_refusals=is_collected())
    journal.absorb(base.journal)
    snapshots = [*base.snapshots]
    for model in models:
        with using(model):
            snapshots += stage.run(copy, journal)
    price = models[-1].byte
    return Candidate(copy, temporary_bytes(copy), journal, None, price, tuple(snapshots))


# -- what is offered ------------------------------------------------------------------------------


def _offers(first: Candidate, stage: Stage, others: Callable[[], Iterable[Graph]]) -> list[Offer]:
    """What may be had, ever slower, and computing ever more; the program without a budget is not
    among it, and none is held to be faster.
    """
    bases = [*_bases(first, first, stage)]
    if _loops(first.graph):
        bases += (each for graph in others() for each in _bases(unchanged(graph), first, stage))
    found = [offer for base in bases for offer in _traded(base, stage)]
    smaller: list[Offer] = []
    for each in reversed(_best(found)):
        least = smaller[-1].nbytes if smaller else first.nbytes
        if each.nbytes < (limits.NEXT_LEAST if each.part < 1 else 1.0) * least:
            smaller.append(each)
    kept = [each for n, each in enumerate(smaller) if _may_be_taken(each, smaller[n + 1 :])]
    kept.sort(key=lambda each: each.flops)
    seconds = accumulate((first.seconds, *(each.seconds for each in kept)), max)
    return [replace(each, seconds=most) for each, most in zip(kept, [*seconds][1:], strict=True)]


def _may_be_taken(offer: Offer, smaller: Sequence[Offer]) -> bool:
    """Whether no smaller one computes less; which of the last are smaller is not known for sure."""
    is_last = offer.part < 1 and len(smaller) < limits.LAST_OFFERS
    return is_last or all(each.flops >= offer.flops for each in smaller)


def _best(offers: Iterable[Offer]) -> list[Offer]:
    """Those than which none is better, the smallest first."""
    best: list[Offer] = []
    for each in sorted(offers, key=lambda each: (each.nbytes, each.seconds)):
        if not any(_is_better(smaller, each) for smaller in best):
            best.append(each)
    return best


def _is_better(smaller: Offer, other: Offer) -> bool:
    """Whether what takes no more memory is no slower; where that is a near tie, it must not compute
    more.
    """
    is_less = other.flops < smaller.flops
    most = smaller.seconds * (limits.NEAR_TIE if is_less else 1.0)
    return other.seconds > most or (not is_less and other.seconds == most)


def _loops(graph: Graph) -> bool:
    """Whether a program has loops whose steps may be computed again."""
    return any(isinstance(op, Scan) for op in graph.walk())


def _bases(start: Candidate, first: Candidate, stage: Stage) -> Iterator[Candidate]:
    """A program as it is, and with its loops as they are at rising prices of what memory the
    program without a budget takes: at those where its own loops would be others, or those that it
    has at such a price.
    """
    yield start
    if not _loops(start.graph):
        return
    prices = [each * first.seconds / max(first.nbytes, 1) for each in limits.PRICES]

    def says(number: int, graph: Graph = start.graph) -> list[str]:
        if number < 0:
            return []
        with using(cost_model().at(prices[number], 1.0)):
            return [found.says for found in stage.find(graph)]

    numbers = [*changes(functools.cache(says), -1, len(prices) - 1)]
    for number, after in pairwise((*numbers, len(prices))):
        made = rewritten(start, stage, cost_model().at(prices[number], 1.0))
        yield made
        of_made = functools.cache(functools.partial(says, graph=made.graph))
        for other in changes(of_made, number, after - 1):
            yield rewritten(start, stage, cost_model().at(prices[other], 1.0))


def changes(says: Callable[[int], list[str]], low: int, high: int) -> Iterator[int]:
    """The numbers above `low`, up to `high`, at which `says` gives something else than at the
    number before.

    By bisection: what costs least at two prices also costs least at all prices between them.
    """
    if says(low) == says(high):
        return
    if high - low == 1:
        yield high
        return
    middle = (low + high) // 2
    yield from changes(says, low, middle)
    yield from changes(says, middle, high)


def _traded(base: Candidate, stage: Stage) -> Iterator[Offer]:
    """A candidate, and what may be made of it by trades of its straight-line code."""
    flops = base.flops or 0
    yield Offer(base, 1.0, base.nbytes, base.seconds, flops)
    with using(cost_model().at(base.price, 0.0)):
        found = stage.find(base.graph, is_straight=True)
    places = [each.trades for each in found if each.trades]
    for part in sorted({trade.part for trades in places for trade in trades}, reverse=True):
        taken = [_within(trades, part) for trades in places]
        rest = base.nbytes - sum(each.saved for each in taken)
        nbytes = max(rest, round(max(each.part for each in taken) * base.nbytes))
        again = sum(each.seconds for each in taken)
        less = cost_model().fresh(base.nbytes) - cost_model().fresh(nbytes)
        computed = flops + sum(each.flops for each in taken)
        yield Offer(base, part, nbytes, base.seconds + again - less, computed)


def _within(trades: Sequence[Trade], part: float) -> Trade:
    """The fastest that comes to a part, or else the smallest."""
    return next((each for each in trades if each.part <= part), trades[-1])


# -- what is taken --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Shelf:
    """Offers, ever slower and computing more, each made once at most."""

    offers: list[Offer]
    stage: Stage
    known: dict[Offer, Candidate] = field(default_factory=dict)

    def made(self, offer: Offer) -> Candidate:
        """The candidate of an offer."""
        if offer not in self.known:
            self.known[offer] = offer.made(self.stage)
        return self.known[offer]

    def chosen(self, limit: int | None, first: Candidate) -> Candidate:
        """The fastest that fits, or else the smallest of the last, and of what there is now."""
        most = -1 if limit is None else limit
        last = sorted(self.offers, key=lambda each: each.nbytes)[: limits.LAST_OFFERS]
        for offer in self.offers:
            may_fit = offer.nbytes <= most or (limit is not None and offer in last)
            if may_fit and self.made(offer).nbytes <= most:
                return self.made(offer)
        return min([first, *map(self.made, last)], key=lambda each: (each.nbytes, each.seconds))

    def frontier(self, first: Candidate) -> tuple[Candidate, ...]:
        """All of them that take less than what is faster."""
        kept = [first]
        for each in map(self.made, self.offers):
            if each.nbytes < kept[-1].nbytes:
                kept.append(each)
        return tuple(kept)


_listener: ContextVar[list[Plan] | None] = ContextVar("jaxpr_opt_plans", default=None)


@contextlib.contextmanager
def collect_plans() -> Iterator[list[Plan]]:
    """The plans of all programs that are optimised inside, each with its whole frontier."""
    plans: list[Plan] = []
    token = _listener.set(plans)
    try:
        yield plans
    finally:
        _listener.reset(token)
