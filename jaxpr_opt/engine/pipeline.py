"""A program's way through the passes.

A `Pipeline` is a sequence of stages, each a group of passes run to a fixpoint.  It runs in two
phases: ``differentiable`` at trace time, whose result JAX may still differentiate, and ``final``
at lowering, when nothing can.  Passes of the first phase run in both.  A pass that fails is named
in a warning and the program is optimised again without it; in strict mode the failure is raised.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.core import ClosedJaxpr

from jaxpr_opt import settings
from jaxpr_opt.bridge import compat, compat_devices, compat_types, guard
from jaxpr_opt.engine import log
from jaxpr_opt.engine.already_optimized import State, mark_optimized, optimized_state, source_of
from jaxpr_opt.engine.interface import PHASES, Pass, PassError
from jaxpr_opt.engine.running import Census, Run, Trading, opened
from jaxpr_opt.engine.split import Split, join, split
from jaxpr_opt.insight.journal import (
    Journal,
    is_collected,
    measure,
    publish,
)
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Graph, Op, Phase, Remat
from jaxpr_opt.ir.importer import INLINED_WHEN_FINAL, import_jaxpr
from jaxpr_opt.ir.traits import is_plainly_called
from jaxpr_opt.memory.budget import Budget
from jaxpr_opt.memory.messages import tell_unmet
from jaxpr_opt.memory.planner import plan
from jaxpr_opt.memory.thrift import spared


@dataclass(frozen=True, slots=True)
class Result:
    """An optimised program.  `jaxpr` is the very object that came in when nothing fired."""

    jaxpr: ClosedJaxpr
    journal: Journal
    snapshots: tuple[tuple[str, ClosedJaxpr], ...] = ()

    @property
    def changed(self) -> bool:
        return self.journal.changed


@dataclass(frozen=True)
class Pipeline:
    """Stages of passes; hashable, so that it may be part of a program's identity."""

    stages: tuple[tuple[Pass[Any], ...], ...]
    trades: tuple[Pass[Any], ...] = ()
    """The stage that trades seconds for memory (see `jaxpr_opt.memory.planner`), before the first
    stage of passes of the final phase only."""
    memory: Budget | None = None
    """How much temporary memory a program may take; None: as much as is fastest."""

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> Any:
        """Without what is remembered: hashes of strings differ between processes."""
        return Pipeline, (self.stages, self.trades, self.memory)

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.stages, self.trades, self.memory))

    @functools.cached_property
    def passes(self) -> tuple[Pass[Any], ...]:
        """Every pass once, in order of first run."""
        stages = (*self._early, self.trades, *self.stages[len(self._early) :])
        return tuple(dict.fromkeys(each for stage in stages for each in stage))

    @functools.cached_property
    def _early(self) -> tuple[tuple[Pass[Any], ...], ...]:
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
        keeps_cleanup: bool = False,
        divided: bool | None = None,
        donated: frozenset[int] = frozenset(),
        name: str = "fn",
        is_backward: bool = False,
    ) -> Result:
        """Optimise a closed jaxpr, a program of this name; the result computes the same.

        Where passes do no more than tidy up, that is dropped, unless asked for.  `divided`: whether
        XLA may divide arrays over devices; None where only the context can say.  `donated`: the
        arguments that the caller gives up.  `is_backward`: whether it is the second half of a
        gradient.
        """
        divided = compat_devices.may_be_divided() if divided is None else divided
        by = (self, divided)
        state = "cleaned" if phase == "differentiated" else optimized_state(jaxpr, by)
        unseen = not keeps_cleanup or state == "cleaned"
        blind = unseen and self._sees_nothing([jaxpr], phase, state)
        if blind and not settings.current().verify:
            if phase == "differentiable":
                mark_optimized(jaxpr, by, cleaned=state == "cleaned")
            return Result(jaxpr, Journal(phase))
        started = time.perf_counter()
        source = source_of(jaxpr, by)
        given = functools.partial(
            self._imported, phase=phase, name=name, donated=donated, is_backward=is_backward
        )
        before = None if source is None else functools.partial(given, source)
        graph, journal, snapshots = self._optimized(
            functools.partial(given, jaxpr),
            phase,
            divided,
            jaxpr,
            before,
        )
        assert not (blind and journal.changed), f"names said nothing of {list(journal.records)}"
        out = jaxpr
        if journal.changed or (keeps_cleanup and journal.touched):
            out = self._exported(graph, jaxpr, journal)
        if phase == "differentiable" or (phase == "differentiated" and out is not jaxpr):
            if source is None and self.memory is not None and self._has_traded(journal):
                source = jaxpr
            mark_optimized(out, by, cleaned=out is not jaxpr or not journal.touched, source=source)
        _finish(journal, started)
        return Result(out, journal, tuple(snapshots))

    def _imported(
        self,
        jaxpr: ClosedJaxpr,
        phase: Phase,
        name: str,
        donated: frozenset[int],
        is_backward: bool,
    ) -> Graph:
        """The graph of a program some of whose arguments the caller gives up."""
        graph = import_jaxpr(jaxpr, phase=phase, name=name, pipeline=self)
        graph.given_up, graph.is_backward = donated, is_backward
        return graph

    def run_joined(self, halves: Split, num_outputs: int, *, always: bool) -> Split | None:
        """Optimise the two halves of a gradient as one program, then split it where the two
        directions meet (see `jaxpr_opt.engine.split`).

        None if no pass had anything to do, unless it is to be split `always`.
        """
        parts, divided = [halves.forward, halves.backward], compat_devices.may_be_divided()
        blind = not always and self._sees_nothing(parts, "differentiable", None)
        if blind and not settings.current().verify:
            for half in parts:
                mark_optimized(half, (self, divided), cleaned=False)
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
            mark_optimized(half, (self, divided), cleaned=made is not None or not journal.touched)
        _finish(journal, started)
        return made

    def _optimized(
        self,
        make: Callable[[], Graph],
        phase: Phase,
        divided: bool,
        jaxpr: ClosedJaxpr | None = None,
        before: Callable[[], Graph] | None = None,
    ) -> tuple[Graph, Journal, list[tuple[str, ClosedJaxpr]]]:
        """Make a graph and run every stage on it; `before` makes it as it was before the first
        phase, if that has decided what a budget may decide otherwise.
        """
        pipeline = self
        failures: list[tuple[str, str]] = []
        while True:
            journal = Journal(phase, failures=failures, with_refusals=is_collected())
            graph = make()
            graph.divided = divided
            state = pipeline._state_of(jaxpr, graph)
            if graph.cotangents or (phase == "differentiable" and graph.has_gradient):
                graph.phase = "differentiated"
            journal.phase = graph.phase
            journal.name = str(getattr(graph.debug_info, "func_name", None) or graph.name)
            try:
                snapshots = pipeline.apply(graph, journal, state, make, before)
            except PassError as error:
                guard.failed(error, f"{error}; the program was optimised without it", again=True)
                if not guard.is_open():
                    raise
                failures.append((error.name, str(error)))
                pipeline = pipeline.without(error.name)
            else:
                return graph, journal, snapshots

    def apply(
        self,
        graph: Graph,
        journal: Journal,
        state: State | None = None,
        make: Callable[[], Graph] | None = None,
        before: Callable[[], Graph] | None = None,
    ) -> list[tuple[str, ClosedJaxpr]]:
        """Run every stage on a graph in place; raises `PassError`.

        `state`: what the first phase has left to do on it as it is.  `make` makes it as it came
        in, `before` as it was before the first phase, if that has decided what a budget may decide
        otherwise.  Snapshots are taken in check mode only.
        """
        run = Run(graph, journal)
        measure("", graph, journal)
        if state == "uncleaned" and self.memory is None and not self._has_later_work(run.census):
            return run.snapshots
        # By identity: passes without options are equal in hash, and slow to be told apart.
        run.idle_since |= {id(each): 0 for each in self.passes if _is_idle(each, state)}
        differentiates_next = state == "cleaned" and graph.phase == "differentiated"
        for stage in self._early:
            run.stage([p for p in stage if not (differentiates_next and p.unspecified)])
        if graph.phase == "final" or graph.cotangents:
            if self.memory is None:
                self._spare(run)
            else:
                self._spend(self.memory, run, make, before)
        for stage in self.stages[len(self._early) :]:
            run.stage(stage)
        return run.snapshots

    def _spare(self, run: Run) -> None:
        """Take less memory where that takes hardly more time."""
        if not any(each.thrifty for each in self.trades):
            return
        stage = Trading(tuple(each for each in self.trades if each.thrifty or each.cleanup))
        made = spared(run.graph, stage)
        if made is not None:
            run.adopt(made)

    def _spend(
        self,
        memory: Budget,
        run: Run,
        make: Callable[[], Graph] | None,
        before: Callable[[], Graph] | None,
    ) -> None:
        """Trade seconds for memory as far as the budget asks for it."""
        if before is None and self._has_traded(run.journal):
            before = make
        others = functools.partial(self._untraded, run.graph, before)
        seen = opened(run.graph, self.trades)
        given = run.graph if seen is None else seen.graph
        made = plan(given, memory, Trading(self.trades), others)
        # One of the others may be taken as it is.
        if made.chosen.journal.touched or made.chosen.nbytes < made.frontier[0].nbytes:
            if seen is not None:
                run.adopt(seen)
            run.adopt(made.chosen)
        if not made.is_met and (memory.nbytes is not None or _has_backward(run.graph)):
            tell_unmet(made, memory, run.graph)

    def _untraded(self, beside: Graph, before: Callable[[], Graph] | None) -> Iterator[Graph]:
        """A program as the stages before the budget's make it, without what is traded there."""
        if before is None:
            return
        graph = before()
        graph.divided, graph.phase = beside.divided, beside.phase
        run = Run(graph, Journal(graph.phase, with_refusals=False))
        for stage in self._early:
            run.stage([each for each in stage if each.name not in self._traded])
        seen = opened(graph, self.trades)
        yield graph if seen is None else seen.graph

    @functools.cached_property
    def _traded(self) -> frozenset[str]:
        """The passes that trade seconds for memory whether there is a budget or not."""
        early = {each.name for stage in self._early for each in stage}
        return frozenset(p.name for p in self.trades if not p.cleanup and p.name in early)

    def _has_traded(self, journal: Journal) -> bool:
        """Whether one of them has done something."""
        done = (journal.records.get(name) for name in self._traded)
        return any(each is not None and each.rewrites for each in done)

    def mark_part_optimized(self, whole: ClosedJaxpr, part: ClosedJaxpr) -> None:
        """`part` is what `whole` needs for fewer outputs: as that, it has at most to be tidied."""
        for divided in (False, True):
            if optimized_state(whole, (self, divided)) is not None:
                mark_optimized(part, (self, divided), cleaned=False)

    def _sees_nothing(
        self, parts: Sequence[ClosedJaxpr], phase: Phase, state: State | None
    ) -> bool:
        """Whether a phase leaves a program of these parts as it is, as the names of its primitives
        alone say: no pass that does more than tidy up looks at any.

        Where passes are to say what they refuse, all are asked; where graphs are verified, all are
        run all the same.
        """
        if is_collected() or self.memory is not None:
            return False
        names = set().union(*map(compat.primitive_names, parts))
        if not names.isdisjoint(compat.STRUCTURED):
            return False
        known = state is not None and names.isdisjoint(INLINED_WHEN_FINAL)
        last = max(PHASES.index(phase), PHASES.index("differentiated"))
        return not any(
            p.looks_at(names)
            for p in (self._later if known else self.passes)
            if not p.cleanup and PHASES.index(p.phase) <= last
        )

    def _state_of(self, jaxpr: ClosedJaxpr | None, graph: Graph) -> State | None:
        """Whether the first phase has just been here, and a later one sees nothing new."""
        if graph.phase == "differentiated":
            return "cleaned"  # it only asks for what is to be done before
        state = None if jaxpr is None else optimized_state(jaxpr, (self, graph.divided))
        if graph.phase != "final" or state is None:
            return None
        ops = list(graph.walk())
        marks = [op for op in ops if op.name == "stop_gradient"]
        marked = any(map(_is_chosen, marks)) or bool(marks and any(op.regions for op in ops))
        closed = any(isinstance(op, Remat) and is_plainly_called(op) for op in ops)
        return None if graph.opened or marked or closed else state

    def _has_later_work(self, census: Census) -> bool:
        """Whether a pass of a later phase would look at some op."""
        return any(census.anchors(each) for each in self._later)

    @functools.cached_property
    def _later(self) -> tuple[Pass[Any], ...]:
        """The passes of later phases than the first that do more than tidy up."""
        return tuple(p for p in self.passes if p.phase != "differentiable" and not p.cleanup)

    def _exported(self, graph: Graph, original: ClosedJaxpr, journal: Journal) -> ClosedJaxpr:
        try:
            out = export(graph, original.out_avals)
            _same_interface(original, out)
        except Exception as error:  # noqa: BLE001  what JAX will not trace must not reach the user
            dropped = f"the optimised program could not be exported and was dropped: {error}"
            guard.failed(error, dropped, again=True)
            journal.failures.append(("export", str(error)))
            journal.records.clear()
            return original
        return out


def _is_chosen(mark: Op) -> bool:
    """Whether a select reads it: `vmap` of a cond keeps rows that take another branch from making
    a gradient.
    """
    return any(user.name == "select_n" for user in mark.result.users)


def _finish(journal: Journal, started: float) -> None:
    """Log what was done to a program, and hand the journal to whoever collects."""
    journal.seconds = time.perf_counter() - started
    log.tell(journal)
    publish(journal)


def _is_late(stage: Sequence[Pass[Any]]) -> bool:
    """Whether the passes of a stage that do more than tidy up are all of the final phase."""
    phases = {each.phase for each in stage if not each.cleanup}
    return phases == {"final"}


def _is_idle(each: Pass[Any], state: State | None) -> bool:
    """Whether a pass has nothing to do on a program in this state."""
    return each.phase == "differentiable" and (
        state == "cleaned" or (state is not None and not each.cleanup)
    )


def _has_backward(graph: Graph) -> bool:
    """Whether a program is a gradient, or both halves of one."""
    return bool(graph.cotangents) or graph.has_gradient


def _same_interface(before: ClosedJaxpr, after: ClosedJaxpr) -> None:
    """Raise if the optimised program takes or gives other types; weak types and shardings count.

    A mesh over which XLA divides arrays as it likes, or that divides nothing of an array, does not,
    as JAX takes such an array for one of no mesh: carries of a loop, results of branches, tangents,
    cotangents.  What is counted, not computed, is of no mesh, as is a number that a loop stacks;
    and what is computed may come to be of one.
    """
    plain = compat_types.without_idle_mesh
    for kind, old, new in (
        ("input", before.in_avals, after.in_avals),
        ("output", before.out_avals, after.out_avals),
    ):
        for index, (a, b) in enumerate(zip(old, new, strict=True)):
            if plain(a) != plain(b) or getattr(a, "weak_type", None) != getattr(
                b, "weak_type", None
            ):
                raise TypeError(f"{kind} {index} was {a} and became {b}")
