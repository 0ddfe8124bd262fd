"""Run passes over a graph: one pass over all ops, a stage of passes to a fixpoint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from jaxpr_opt import settings
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model, using
from jaxpr_opt.engine.interface import PHASES, Match, Pass, PassError
from jaxpr_opt.insight.journal import Journal, PassRecord, Refusal, Rewrite, is_collected, measure
from jaxpr_opt.ir.devices import ignores_checkpoints, is_divided
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Graph, Op, Remat, Scan
from jaxpr_opt.ir.places import size_of, user_frame
from jaxpr_opt.ir.rewriter import Rewriter, adopt, copy_graph
from jaxpr_opt.ir.verify import verify
from jaxpr_opt.memory.planner import Candidate, unchanged


class Run:
    """Stages that run on a graph, one after the other."""

    def __init__(self, graph: Graph, journal: Journal) -> None:
        self.graph, self.journal = graph, journal
        self.settings = settings.current()
        self.census, self.version = Census(graph), 0
        self.idle_since: dict[int, int] = {}
        """For passes that found nothing to do: in which version of the graph."""
        self.snapshots: list[tuple[str, ClosedJaxpr]] = []

    def stage(self, stage: Sequence[Pass[Any]]) -> None:
        """Run passes to a fixpoint; raises `PassError`.

        If there is no fixpoint, the graph is sound all the same: an error in strict mode only.
        """
        phase = PHASES.index(self.graph.phase)
        active = [each for each in stage if PHASES.index(each.phase) <= phase]
        for _ in range(limits.ROUNDS):
            if not sum(self._fires(each) for each in active):
                return
        names = ", ".join(p.name for p in active)
        error = PassError(names, (), RuntimeError(f"no fixpoint after {limits.ROUNDS} rounds"))
        if settings.current().strict:
            raise error
        self.journal.failures.append((names, str(error)))

    def adopt(self, made: Candidate) -> None:
        """Go on with what was made of a copy of the graph."""
        adopt(self.graph, made.graph)
        self.journal.absorb(made.journal)
        self.snapshots += made.snapshots
        self.version, self.census = self.version + 1, Census(self.graph)

    def _fires(self, each: Pass[Any]) -> bool:
        """Whether a pass changes the graph, if it has not seen it yet."""
        if self.idle_since.get(id(each)) == self.version:
            return False
        if not run_pass(each, self.graph, self.journal, self.settings.verify, self.census):
            self.idle_since[id(each)] = self.version
            return False
        self.version, self.census = self.version + 1, Census(self.graph)
        measure(each.name, self.graph, self.journal)
        if self.settings.check:
            self.snapshots.append((each.name, export(self.graph)))
        return True


@dataclass(frozen=True, slots=True)
class Trading:
    """The stage that trades seconds for memory, on copies of a graph."""

    passes: tuple[Pass[Any], ...]

    def find(self, graph: Graph, *, is_straight: bool = False) -> list[Match]:
        """The matches of its passes on a graph as it is, or only in straight-line code; raises
        `PassError`.
        """
        census, journal = Census(graph), Journal(graph.phase, with_refusals=False)
        found: list[Match] = []
        for each in self.passes:
            with _named(each, journal):
                is_asked = not (each.cleanup or (is_straight and not each.looks_at(census.named)))
                ops = census.anchors(each) if is_asked else []
                found += (match for op in ops for match, _ in _judged(each, op, journal))
        return found

    def run(self, graph: Graph, journal: Journal) -> list[tuple[str, ClosedJaxpr]]:
        """Run it on a graph, in place; raises `PassError`.

        Straight-line code is tidied up only if it is chosen: nothing here needs that before.
        """
        run = Run(graph, journal)
        has_loops = any(isinstance(op, Scan) for op in graph.walk())
        run.stage([each for each in self.passes if has_loops or not each.cleanup])
        return run.snapshots


def opened(graph: Graph, trades: Sequence[Pass[Any]]) -> Candidate | None:
    """A copy of a program without the checkpoints that the device ignores: what they say is
    computed again is counted once, as XLA computes it.  None if there are none; raises `PassError`.
    """
    if not ignores_checkpoints() or not any(isinstance(op, Remat) for op in graph.walk()):
        return None
    copy, journal = copy_graph(graph), Journal(graph.phase, with_refusals=is_collected())
    run = Run(copy, journal)
    with using(cost_model().at(cost_model().byte, 1.0)):
        run.stage([each for each in trades if each.cleanup])
    made = unchanged(copy)
    kept = replace(made, journal=journal, snapshots=tuple(run.snapshots))
    return kept if journal.touched else None


class Census:
    """The ops of a graph by name, each with its place in program order. Most passes look at ops of
    few names, and most programs have few.
    """

    def __init__(self, graph: Graph) -> None:
        self.named: dict[str, list[tuple[int, Op]]] = {}
        self.structured: dict[str, list[tuple[int, Op]]] = {}
        for place, op in enumerate(graph.walk()):
            self.named.setdefault(op.name, []).append((place, op))
            if type(op) is not Op:
                self.structured.setdefault(op.name, []).append((place, op))

    def anchors(self, each: Pass[Any]) -> list[Op]:
        """The ops that a pass is asked about."""
        if each.needs is not None and each.needs.isdisjoint(self.named):
            return []
        named, known = each.primitives, self.named if Op in each.anchors else self.structured
        names = known if named is None else named.intersection(known)
        found = [p for name in names for p in known[name] if isinstance(p[1], each.anchors)]
        return [op for _, op in sorted(found)]


def run_pass(
    each: Pass[Any],
    graph: Graph,
    journal: Journal,
    debug: bool = False,
    census: Census | None = None,
) -> bool:
    """Run one pass over every op of a graph until it finds nothing more; return whether it changed
    anything. `census` is the graph's, if it is known.

    After each rewrite the pass looks at the same op again, unless it does all at once, and then at
    the structured ops that the rewrite has made.  So `find` always sees the graph as it is.
    """
    record = journal.record(each.name, each.cleanup)
    started = time.perf_counter()
    record.refusals.clear()
    fired = False
    with _named(each, journal):
        pending = (census or Census(graph)).anchors(each)[::-1]
        while pending:
            op = pending[-1]
            rw = _rewrite_one(each, op, graph, record, journal) if op.region is not None else None
            if rw is None or each.at_once:
                pending.pop()
            if rw is not None:
                fired = True
                pending.extend(made for made in rw.made if _is_anchor(made, each))
        if debug:
            _check_needs(each, graph)
        if fired and debug:
            verify(graph)
    record.seconds += time.perf_counter() - started
    return fired


@contextlib.contextmanager
def _named(each: Pass[Any], journal: Journal) -> Iterator[None]:
    """Name the pass that fails inside, and those that changed the program before it."""
    try:
        yield
    except (
        Exception
    ) as error:  # the contract: a failing pass never takes the user's program down with it
        fired = [n for n, record in journal.records.items() if record.rewrites and n != each.name]
        raise PassError(each.name, fired, error) from error


def _check_needs(each: Pass[Any], graph: Graph) -> None:
    """Raise if a pass finds something in a graph without any op that it says it needs."""
    if each.needs is not None and each.needs.isdisjoint(Census(graph).named):
        anchors = [op for op in graph.walk() if _is_anchor(op, each)]
        found = [match.says for op in anchors for match in each.find(op)]
        assert not found, f"{each.name} found something without what it needs: {found}"


def _is_anchor(op: Op, each: Pass[Any]) -> bool:
    named = each.primitives is None or op.name in each.primitives
    return named and isinstance(op, each.anchors)


def _judged(each: Pass[Any], op: Op, journal: Journal) -> Iterator[tuple[Match, str | None]]:
    """The matches of a pass at an op, each with the reason why it is refused; no more where that
    depends on a size that is a symbol.
    """
    try:
        for match in each.find(op):
            if match.is_refused and not journal.with_refusals:
                continue
            reason = each.refuse(match) or _why_undivided(each, op)
            if reason is None or journal.with_refusals:
                yield match, reason
    except jax.errors.InconclusiveDimensionOperation:
        return


def _rewrite_one(
    each: Pass[Any], op: Op, graph: Graph, record: PassRecord, journal: Journal
) -> Rewriter | None:
    for match, reason in _judged(each, op, journal):
        frame = user_frame(match.at or match.op)
        size = None if match.about is None else size_of(match.about)
        if reason is not None:
            record.refusals[Refusal(match.says, reason, frame, size, match.waste)] = None
            continue
        rw = Rewriter(graph, match.op)
        each.rewrite(match, rw)
        assert rw.edits, f"{each.name} accepted a match but changed nothing: {match.says}"
        record.rewrites.append(
            Rewrite(match.says, frame, len(rw.edits), size, match.waste, match.is_cleanup)
        )
        return rw
    return None


def _why_undivided(each: Pass[Any], op: Op) -> str | None:
    """Why a pass must not run where XLA may divide arrays over devices."""
    if not each.whole_arrays or not is_divided(op):
        return None
    return "XLA may divide the array over devices, and would gather it where it is read or written"
