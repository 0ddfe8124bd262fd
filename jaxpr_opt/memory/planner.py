"""Which program a memory budget buys: candidates at some prices of memory, and the one to take.

A *budget stage* is passes that trade seconds for memory at the price that the cost model gives a
byte (`CostModel.byte`).  It runs on copies of a graph, at one price after the other, until a higher
price buys nothing; what the copies take is estimated.  The candidates depend on the graph alone,
not on the budget, and of those that fit the fastest is taken: so a larger budget never costs more
predicted seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace

from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import CostModel, cost_model, using
from jaxpr_opt.cost.ops import cost
from jaxpr_opt.cost.prediction import known_seconds, predicted_seconds
from jaxpr_opt.engine.ir import Graph
from jaxpr_opt.engine.journal import Journal
from jaxpr_opt.engine.rewriter import copy_graph
from jaxpr_opt.insight.liveness import temporary_bytes
from jaxpr_opt.memory.budget import Budget

Run = Callable[[Graph, Journal], None]
"""Runs the budget stage on a graph, in place."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that a budget may buy."""

    price: float
    """Seconds that a byte is worth."""
    nbytes: int
    """Temporary memory at its peak, as far as it is known."""
    seconds: float
    """Predicted seconds of a run."""
    flops: int | None
    """Floating point operations of a run; None if they are not known."""
    journal: Journal
    """What the budget stage did."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a budget may buy, the fastest program first, and what it buys."""

    name: str
    frontier: tuple[Candidate, ...]
    chosen: Candidate
    limit: int | None
    """Bytes that the budget allows; None if the least is asked for."""

    @property
    def is_met(self) -> bool:
        return self.limit is None or self.chosen.nbytes <= self.limit


def plan(graph: Graph, budget: Budget, run: Run) -> Plan:
    """The program that a budget buys; the smallest if none fits."""
    first = _first(graph)
    is_least = budget.nbytes is None and budget.part is None
    limit = None if is_least else budget.limit(first.nbytes)
    fits = limit is not None and first.nbytes <= limit and _listener.get() is None
    frontier = (first,) if fits else _frontier(first, _candidates(graph, first, run))
    fitting = (each for each in frontier if limit is not None and each.nbytes <= limit)
    made = Plan(graph.name, frontier, next(fitting, frontier[-1]), limit)
    if (told := _listener.get()) is not None:
        told.append(made)
    return made


def _first(graph: Graph) -> Candidate:
    """The program without a budget."""
    return _estimated(graph, 0.0, Journal(graph.phase, tells=False))


def _candidate(graph: Graph, price: float, before: Candidate, run: Run) -> Candidate:
    """The program at a price, estimated unless it is the one before."""
    copy, journal = copy_graph(graph), Journal(graph.phase, tells=False)
    with using(cost_model().at(price)):
        run(copy, journal)
    if _deeds(journal) == _deeds(before.journal):
        return replace(before, price=price)
    return _estimated(copy, price, journal)


def _deeds(journal: Journal) -> list[tuple[str, str]]:
    """What passes did, in words."""
    records = journal.records.values()
    return [(each.name, rewrite.says) for each in records for rewrite in each.rewrites]


def _estimated(graph: Graph, price: float, journal: Journal) -> Candidate:
    seconds, flops = _seconds(graph, cost_model()), cost(graph.body).flops
    return Candidate(price, temporary_bytes(graph), seconds, flops, journal)


def _seconds(graph: Graph, model: CostModel) -> float:
    """Predicted seconds; of what is known, where a `while` or an unknown primitive hides some."""
    known = predicted_seconds(graph, model)
    if known is not None:
        return known
    return known_seconds(graph.body.ops, model)


def _candidates(graph: Graph, first: Candidate, run: Run) -> Iterator[Candidate]:
    """Candidates at rising prices."""
    before = first
    for price in limits.PRICES:
        before = _candidate(graph, price * first.seconds / max(first.nbytes, 1), before, run)
        yield before


def _frontier(first: Candidate, found: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Candidates of which none takes less memory in less time, the fastest first.

    None is held to be faster than the program without a budget.
    """
    made = [first]
    others = [replace(each, seconds=max(each.seconds, first.seconds)) for each in found]
    for each in sorted(others, key=lambda each: (each.seconds, each.nbytes)):
        if each.nbytes < made[-1].nbytes:
            made.append(each)
    return tuple(made)


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
