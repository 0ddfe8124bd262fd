"""Passes, and what runs them.

A pass is three functions: `find` yields the places where it might apply, `refuse` says why a place
must stay as it is (or None), `rewrite` changes it.  `find` and `refuse` are pure; the lint and
`explain` call the same two, so they can never disagree with what the optimiser does.

A `Pipeline` is a sequence of stages, each a group of passes run to a fixpoint.  It runs in two
phases: ``differentiable`` at trace time, whose result JAX may still differentiate, and ``final``
at lowering, when nothing can.  Passes of the first phase run in both.  A pass that fails is named
in a warning and the program is optimised again without it; in strict mode the failure is raised.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, get_args

import jax
from jax.extend.core import ClosedJaxpr

from jaxpr_opt import settings
from jaxpr_opt.analysis.devices import is_divided
from jaxpr_opt.bridge import compat, compat_devices, door
from jaxpr_opt.cost import limits
from jaxpr_opt.engine.exporter import export
from jaxpr_opt.engine.importer import INLINED_WHEN_FINAL, STRUCTURED, import_jaxpr, primitive_names
from jaxpr_opt.engine.ir import Graph, Op, Phase, Value
from jaxpr_opt.engine.journal import (
    Journal,
    PassRecord,
    Refusal,
    Rewrite,
    Waste,
    is_collected,
    measure,
    publish,
    size_of,
    user_frame,
)
from jaxpr_opt.engine.rewriter import Rewriter, adopt
from jaxpr_opt.engine.settled import Settled, settle, settled_by
from jaxpr_opt.engine.split import Split, join, split
from jaxpr_opt.engine.verify import verify
from jaxpr_opt.memory.budget import Budget
from jaxpr_opt.memory.messages import tell_unmet
from jaxpr_opt.memory.planner import Candidate, Trade, plan

PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A place where a pass might apply: the op it is anchored at, and what would happen, in
    words.

    The rest is for those who are told of it.
    """

    op: Op
    says: str
    at: Op | None = field(default=None, kw_only=True)
    """The op whose line of source is told, if not `op`: a write, say, not the loop around it."""
    about: Value | None = field(default=None, kw_only=True)
    """What it is about: its type, its size, and how often it is made."""
    waste: Waste | None = field(default=None, kw_only=True)
    """What XLA would otherwise do with all of it in each step of a loop, if that is known; None
    where XLA does as well, and the rewrite is for other passes to see through."""
    is_refused: bool = field(default=False, kw_only=True)
    """Whether `refuse` always says why not: it is found only where somebody is told."""
    tidies: bool = field(default=False, kw_only=True)
    """Whether it only tidies up, as clean-up passes do: alone it is no reason to touch a
    program."""
    trades: Sequence[Trade] = field(default=(), kw_only=True)
    """How seconds may be traded for memory there, of straight-line code, the fastest first."""


class After(NamedTuple):
    """That a pass is tried after another, and why."""

    name: str
    why: str


class Pass:
    """Base class of passes; subclasses are frozen dataclasses, their options are fields.

    Contract: a verified graph in, a verified graph out, computing the same values bit for bit when
    evaluated equation by equation (up to the sign of zero).
    """

    name: ClassVar[str]
    """kebab-case, the file's name."""
    phase: ClassVar[Phase] = "differentiable"
    """From which phase on it runs."""
    anchors: ClassVar[tuple[type[Op], ...]] = (Op,)
    """`find` is asked about ops of these classes only,"""
    primitives: ClassVar[frozenset[str] | None] = None
    """and of these names, if not None."""
    needs: ClassVar[frozenset[str] | None] = None
    """It finds nothing in a program without any op of these names, if not None."""
    at_once: ClassVar[bool] = False
    """Whether one rewrite does all there is to do at an op, which is then not asked again."""
    cleanup: ClassVar[bool] = False
    """Whether it only tidies up after others: alone it is no reason to touch a program."""
    after: ClassVar[tuple[After, ...]] = ()
    """What it is tried after where both are in a stage; with others it may change places."""

    whole_arrays: ClassVar[bool] = False
    """Whether it runs only where each device has all of an array: it makes a program read or write
    windows of arrays, or read them in other loops, and XLA gathers one that is divided over devices
    to read a window of it, or for each of the loops."""

    def looks_at(self, names: Collection[str]) -> bool:
        """Whether it may find something in straight-line code of ops of these names."""
        asked = Op in self.anchors and (
            self.primitives is None or not self.primitives.isdisjoint(names)
        )
        return asked and (self.needs is None or not self.needs.isdisjoint(names))

    def find(self, op: Op) -> Iterator[Any]:
        """Matches anchored at `op`."""
        raise NotImplementedError

    def refuse(self, match: Any) -> str | None:
        """Why the match must stay as it is, naming the value at fault; None if it may be
        rewritten.
        """
        raise NotImplementedError

    def rewrite(self, match: Any, rw: Rewriter) -> None:
        """Apply the match, which `refuse` has just let pass."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Result:
    """An optimised program.  `jaxpr` is the very object that came in when nothing fired."""

    jaxpr: ClosedJaxpr
    journal: Journal
    snapshots: tuple[tuple[str, ClosedJaxpr], ...] = ()

    @property
    def changed(self) -> bool:
        return self.journal.changed


class PassError(Exception):
    """A pass broke: which one, and after which others."""

    def __init__(self, name: str, before: Sequence[str], cause: BaseException) -> None:
        after = f" (after {', '.join(before)})" if before else ""
        super().__init__(f"pass {name}{after} failed: {type(cause).__name__}: {cause}")
        self.name = name


@dataclass(frozen=True)
class Pipeline:
    """Stages of passes; hashable, so that it may be part of a program's identity."""

    stages: tuple[tuple[Pass, ...], ...]
    trades: tuple[Pass, ...] = ()
    """The stage that trades seconds for memory (see `jaxpr_opt.memory.planner`), before the first
    stage of passes of the final phase only."""
    memory: Budget | None = None
    """How much temporary memory a program may take; None: as much as is fastest."""

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.stages, self.trades, self.memory))

    @functools.cached_property
    def passes(self) -> tuple[Pass, ...]:
        """Every pass once, in order of first run."""
        stages = (*self._early, self.trades, *self.stages[len(self._early) :])
        return tuple(dict.fromkeys(each for stage in stages for each in stage))

    @functools.cached_property
    def _early(self) -> tuple[tuple[Pass, ...], ...]:
        """The stages before the first of passes of the final phase only, cleanup apart."""
        late = [_is_late(stage) for stage in self.stages]
        return self.stages[: late.index(True)] if True in late else self.stages

    def without(self, name: str) -> Pipeline:
        *stages, trades = (
            tuple(p for p in stage if p.name != name) for stage in (*self.stages, self.trades)
        )
        return replace(self, stages=tuple(stages), trades=trades)

    @functools.cached_property
    def unbudgeted(self) -> Pipeline:
        """The same without a budget: for programs for which one has been spent."""
        return replace(self, memory=None)

    def takes_in(self, other: Pipeline) -> bool:
        """Whether what another pipeline optimises may be optimised as a part of what this one
        does: only which passes run, and within which memory, was said there.
        """
        return other in (self, self.unbudgeted)

    def run(
        self,
        jaxpr: ClosedJaxpr,
        phase: Phase = "differentiable",
        *,
        tidy: bool = False,
        divided: bool | None = None,
        name: str = "fn",
    ) -> Result:
        """Optimise a closed jaxpr, a program of this name; the result computes the same.

        Where passes do no more than tidy up, that is dropped, unless asked for.  `divided`: whether
        XLA may divide arrays over devices; None where only the context can say.
        """
        divided = compat_devices.may_be_divided() if divided is None else divided
        by = (self, divided)
        settled = "tidy" if phase == "differentiated" else settled_by(jaxpr, by)
        blind = (not tidy or settled == "tidy") and self._sees_nothing([jaxpr], phase, settled)
        if blind and not settings.current().verify:
            if phase == "differentiable":
                settle(jaxpr, by, tidy=settled == "tidy")
            return Result(jaxpr, Journal(phase))
        started = time.perf_counter()
        graph, journal, snapshots = self._optimized(
            lambda: import_jaxpr(jaxpr, phase, name, pipeline=self), phase, divided, jaxpr
        )
        assert not (blind and journal.changed), f"names said nothing of {list(journal.records)}"
        out = jaxpr
        if journal.changed or (tidy and journal.touched):
            out = self._exported(graph, jaxpr, journal)
        if phase == "differentiable" or (phase == "differentiated" and out is not jaxpr):
            settle(out, (self, divided), tidy=out is not jaxpr or not journal.touched)
        journal.seconds = time.perf_counter() - started
        publish(journal)
        return Result(out, journal, tuple(snapshots))

    def run_joined(self, halves: Split, num_outputs: int, *, always: bool = False) -> Split | None:
        """Optimise the two halves of a gradient as one program, then split it where the two
        directions meet (see `jaxpr_opt.engine.split`).

        None if no pass had anything to do, unless it is to be split `always`.
        """
        parts, divided = [halves.forward, halves.backward], compat_devices.may_be_divided()
        blind = not always and self._sees_nothing(parts, "differentiable", None)
        if blind and not settings.current().verify:
            for half in parts:
                settle(half, (self, divided), tidy=False)
            return None
        started = time.perf_counter()
        graph, journal, _ = self._optimized(
            lambda: join(halves, num_outputs, self), "differentiable", divided
        )
        assert not (blind and journal.changed), f"names said nothing of {list(journal.records)}"
        made = None
        if journal.changed or always:
            made = split(graph, len(halves.forward.in_avals), num_outputs)
        for half in (made.forward, made.backward) if made else parts:
            settle(half, (self, divided), tidy=made is not None or not journal.touched)
        journal.seconds = time.perf_counter() - started
        publish(journal)
        return made

    def _optimized(
        self,
        make: Callable[[], Graph],
        phase: Phase,
        divided: bool,
        jaxpr: ClosedJaxpr | None = None,
    ) -> tuple[Graph, Journal, list[tuple[str, ClosedJaxpr]]]:
        pipeline = self
        failures: list[tuple[str, str]] = []
        while True:
            journal = Journal(phase, failures=failures, tells=is_collected())
            graph = make()
            graph.divided = divided
            settled = pipeline._settled_as(jaxpr, graph)
            if graph.cotangents or (phase == "differentiable" and _is_derivative(graph)):
                graph.phase = "differentiated"
            journal.phase = graph.phase
            journal.name = str(getattr(graph.debug_info, "func_name", None) or graph.name)
            try:
                snapshots = pipeline.apply(graph, journal, settled)
            except PassError as error:
                door.failed(error, f"{error}; the program was optimised without it", again=True)
                if not door.is_open():
                    raise
                failures.append((error.name, str(error)))
                pipeline = pipeline.without(error.name)
            else:
                return graph, journal, snapshots

    def apply(
        self, graph: Graph, journal: Journal, settled: Settled | None = None
    ) -> list[tuple[str, ClosedJaxpr]]:
        """Run every stage on a graph in place; raises `PassError`.

        `settled`: what the first phase has left to do on it as it is.  Snapshots are taken in check
        mode only.
        """
        run = _Run(graph, journal)
        measure("", graph, journal)
        if settled == "untidy" and self.memory is None and not self._has_later_work(run.census):
            return run.snapshots
        # By identity: passes without options are equal in hash, and slow to be told apart.
        run.idle_since |= {id(each): 0 for each in self.passes if _is_idle(each, settled)}
        for stage in self._early:
            run.stage(stage)
        if self.memory is not None and (graph.phase == "final" or graph.cotangents):
            self._spend(self.memory, run)
        for stage in self.stages[len(self._early) :]:
            run.stage(stage)
        return run.snapshots

    def _spend(self, memory: Budget, run: _Run) -> None:
        """Trade seconds for memory as far as the budget asks for it."""
        made = plan(run.graph, memory, _Trading(self.trades))
        if made.chosen.journal.touched:
            run.adopt(made.chosen)
        if not made.is_met and (memory.nbytes is not None or _has_backward(run.graph)):
            tell_unmet(made, memory, run.graph)

    def settle_part(self, whole: ClosedJaxpr, part: ClosedJaxpr) -> None:
        """`part` is what `whole` needs for fewer outputs: as that, it has at most to be tidied."""
        for divided in (False, True):
            if settled_by(whole, (self, divided)) is not None:
                settle(part, (self, divided), tidy=False)

    def _sees_nothing(
        self, parts: Sequence[ClosedJaxpr], phase: Phase, settled: Settled | None
    ) -> bool:
        """Whether a phase leaves a program of these parts as it is, as the names of its primitives
        alone say: no pass that does more than tidy up looks at any.

        Where passes are to say what they refuse, all are asked; where graphs are verified, all are
        run all the same.
        """
        if is_collected() or self.memory is not None:
            return False
        names = set().union(*map(primitive_names, parts))
        if not names.isdisjoint(STRUCTURED):
            return False
        known = settled is not None and names.isdisjoint(INLINED_WHEN_FINAL)
        last = max(PHASES.index(phase), PHASES.index("differentiated"))
        return not any(
            p.looks_at(names)
            for p in (self._later if known else self.passes)
            if not p.cleanup and PHASES.index(p.phase) <= last
        )

    def _settled_as(self, jaxpr: ClosedJaxpr | None, graph: Graph) -> Settled | None:
        """Whether the first phase has just been here, and a later one sees nothing new."""
        if graph.phase == "differentiated":
            return "tidy"  # it only asks for what is to be done before
        state = None if jaxpr is None else settled_by(jaxpr, (self, graph.divided))
        if graph.phase != "final" or state is None:
            return None
        ops = list(graph.walk())
        marked = any(op.name == "stop_gradient" for op in ops) and any(op.regions for op in ops)
        return None if graph.opened or marked else state

    def _has_later_work(self, census: Census) -> bool:
        """Whether a pass of a later phase would look at some op."""
        return any(census.anchors(each) for each in self._later)

    @functools.cached_property
    def _later(self) -> tuple[Pass, ...]:
        """The passes of later phases than the first that do more than tidy up."""
        return tuple(p for p in self.passes if p.phase != "differentiable" and not p.cleanup)

    def _exported(self, graph: Graph, original: ClosedJaxpr, journal: Journal) -> ClosedJaxpr:
        try:
            out = export(graph, original.out_avals)
            _same_interface(original, out)
        except Exception as error:  # noqa: BLE001  what JAX will not trace must not reach the user
            dropped = f"the optimised program could not be exported and was dropped: {error}"
            door.failed(error, dropped, again=True)
            journal.failures.append(("export", str(error)))
            journal.records.clear()
            return original
        return out


class _Run:
    """Stages that run on a graph, one after the other."""

    def __init__(self, graph: Graph, journal: Journal) -> None:
        self.graph, self.journal = graph, journal
        self.settings = settings.current()
        self.census, self.version = Census(graph), 0
        self.idle_since: dict[int, int] = {}
        """For passes that found nothing to do: in which version of the graph."""
        self.snapshots: list[tuple[str, ClosedJaxpr]] = []

    def stage(self, stage: Sequence[Pass]) -> None:
        """Run passes to a fixpoint; raises `PassError`."""
        phase = PHASES.index(self.graph.phase)
        active = [each for each in stage if PHASES.index(each.phase) <= phase]
        for _ in range(limits.ROUNDS):
            if not sum(self._fires(each) for each in active):
                return
        names = ", ".join(p.name for p in active)
        raise PassError(names, (), RuntimeError(f"no fixpoint after {limits.ROUNDS} rounds"))

    def adopt(self, made: Candidate) -> None:
        """Go on with what was made of a copy of the graph."""
        adopt(self.graph, made.graph)
        self.journal.absorb(made.journal)
        self.snapshots += made.snapshots
        self.version, self.census = self.version + 1, Census(self.graph)

    def _fires(self, each: Pass) -> bool:
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
class _Trading:
    """The stage that trades seconds for memory, on copies of a graph."""

    passes: tuple[Pass, ...]

    def find(self, graph: Graph) -> list[Match]:
        """What its passes would do on a graph as it is; raises `PassError`."""
        census, journal = Census(graph), Journal(graph.phase, tells=False)
        found: list[Match] = []
        for each in self.passes:
            with _named(each, journal):
                ops = [] if each.cleanup else census.anchors(each)
                found += (match for op in ops for match, _ in _judged(each, op, journal))
        return found

    def run(self, graph: Graph, journal: Journal) -> list[tuple[str, ClosedJaxpr]]:
        """Run it on a graph, in place; raises `PassError`."""
        run = _Run(graph, journal)
        run.stage(self.passes)
        return run.snapshots


def _is_late(stage: Sequence[Pass]) -> bool:
    """Whether the passes of a stage that do more than tidy up are all of the final phase."""
    phases = {each.phase for each in stage if not each.cleanup}
    return phases == {"final"}


class Census:
    """The ops of a graph by name, each with its place in program order: most passes look at ops of
    few names, and most programs have few.
    """

    def __init__(self, graph: Graph) -> None:
        self.named: dict[str, list[tuple[int, Op]]] = {}
        for place, op in enumerate(graph.walk()):
            self.named.setdefault(op.name, []).append((place, op))

    def anchors(self, each: Pass) -> list[Op]:
        """The ops that a pass is asked about."""
        if each.needs is not None and each.needs.isdisjoint(self.named):
            return []
        named = each.primitives
        names = self.named if named is None else named.intersection(self.named)
        found = [p for name in names for p in self.named[name] if isinstance(p[1], each.anchors)]
        return [op for _, op in sorted(found)]


def run_pass(
    each: Pass, graph: Graph, journal: Journal, debug: bool = False, census: Census | None = None
) -> bool:
    """Run one pass over every op of a graph until it finds nothing more to do; whether it changed
    anything.  `census` is that of the graph, if somebody knows.

    An op is asked again after each rewrite anchored at it, but by passes that do all at once, and
    structured ops a rewrite has made are asked next, so `find` always sees the graph as it is.
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
def _named(each: Pass, journal: Journal) -> Iterator[None]:
    """Name the pass that fails inside, and those that ran before it."""
    try:
        yield
    except (
        Exception
    ) as error:  # the contract: a failing pass never takes the user's program down with it
        raise PassError(each.name, [n for n in journal.records if n != each.name], error) from error


def _check_needs(each: Pass, graph: Graph) -> None:
    """Raise if a pass finds something in a graph without any op that it says it needs."""
    census = Census(graph)
    if each.needs is not None and each.needs.isdisjoint(census.named):
        anchors = [op for op in graph.walk() if _is_anchor(op, each)]
        found = [match.says for op in anchors for match in each.find(op)]
        assert not found, f"{each.name} found something without what it needs: {found}"


def _is_idle(each: Pass, settled: Settled | None) -> bool:
    """Whether a pass has nothing to do on a program that is settled, as it is."""
    return each.phase == "differentiable" and (
        settled == "tidy" or (settled is not None and not each.cleanup)
    )


def _is_derivative(graph: Graph) -> bool:
    """Whether a program computes cotangents."""
    return any(op.source.transposed for op in graph.walk())


def _has_backward(graph: Graph) -> bool:
    """Whether a program is a gradient, or both halves of one."""
    return bool(graph.cotangents) or _is_derivative(graph)


def _is_anchor(op: Op, each: Pass) -> bool:
    named = each.primitives is None or op.name in each.primitives
    return named and isinstance(op, each.anchors)


def _judged(each: Pass, op: Op, journal: Journal) -> Iterator[tuple[Match, str | None]]:
    """What a pass finds at an op, each match with why it is left; nothing more where that depends
    on a size that is a symbol.
    """
    with contextlib.suppress(jax.errors.InconclusiveDimensionOperation):
        for match in each.find(op):
            if match.is_refused and not journal.tells:
                continue
            reason = each.refuse(match) or _why_undivided(each, op)
            if reason is None or journal.tells:
                yield match, reason


def _rewrite_one(
    each: Pass, op: Op, graph: Graph, record: PassRecord, journal: Journal
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
            Rewrite(match.says, frame, len(rw.edits), size, match.waste, match.tidies)
        )
        return rw
    return None


def _why_undivided(each: Pass, op: Op) -> str | None:
    """Why a pass must not run where XLA may divide arrays over devices."""
    if not each.whole_arrays or not is_divided(op):
        return None
    return "XLA may divide the array over devices, and would gather it where it is read or written"


def _same_interface(before: ClosedJaxpr, after: ClosedJaxpr) -> None:
    """Raise if the optimised program takes or gives other types; weak types and shardings count.

    A mesh over which XLA divides arrays as it likes does not, as JAX takes an array of such a mesh
    for one of none: carries of a loop, results of branches, tangents, cotangents.  What is counted,
    not computed, is of no mesh; and what is computed may come to be of one.
    """
    plain = compat.without_auto_mesh
    for kind, old, new in (
        ("input", before.in_avals, after.in_avals),
        ("output", before.out_avals, after.out_avals),
    ):
        for index, (a, b) in enumerate(zip(old, new, strict=True)):
            if plain(a) != plain(b) or getattr(a, "weak_type", None) != getattr(
                b, "weak_type", None
            ):
                raise TypeError(f"{kind} {index} was {a} and became {b}")
