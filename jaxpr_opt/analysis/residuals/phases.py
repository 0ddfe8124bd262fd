"""Phases of a loop whose gradient is computed: runs of steps in which it is known what each choice
comes to.

``cond(t < 100, warm_up, go_on)`` takes one branch in the first steps, and another one in the rest;
``where(t % 10 == 9, new, old)`` chooses ``new`` in one step of ten. A gradient stores what either
case leaves in all steps, and computes both. Divided into its phases, a loop and the loops that read
its residuals keep and compute what each phase needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jaxpr_opt.analysis.residuals.replays import Replay, replay
from jaxpr_opt.analysis.steps.assume import Assumed
from jaxpr_opt.analysis.steps.predicates import predicate_root
from jaxpr_opt.analysis.steps.splats import Known, Splat
from jaxpr_opt.analysis.values.constants import is_undefined
from jaxpr_opt.analysis.values.linearity import carries_cotangents, is_cotangent
from jaxpr_opt.analysis.values.step_numbers import Numbers, numbers_at
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.known_seconds import known_seconds
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.graph import Cond, Scan, Value

Choices = Mapping[Value, Numbers]
"""What chooses in a step, and the number that it is for each row of the loop's streams."""


@dataclass(frozen=True, slots=True)
class Division:
    """Rounds of pieces: of how many rows each piece of a round is, and how many rounds are run."""

    lengths: tuple[int, ...]
    rounds: int = 1
    rest: int = 0
    """Rows after the last round."""

    @property
    def starts(self) -> tuple[int, ...]:
        """The row of a round at which each piece begins, and at which the last one ends."""
        return (0, *(int(n) for n in np.cumsum(self.lengths)))


KnownInPhase = Mapping[Value, Known]
"""What is known of the values of a loop's step in one piece of each round; others are what they
are."""


@dataclass(frozen=True, slots=True, eq=False)
class Phases:
    """A loop that stores residuals, and how it and their readers are divided."""

    replay: Replay
    division: Division
    known: Mapping[Scan, Sequence[KnownInPhase]]
    """Of each of the loops, what is known in each piece of a round."""
    seconds: float
    """Of computing what a piece does not need."""
    nbytes: int
    """Of rows that a piece need not store."""

    @property
    def is_worth_it(self) -> bool:
        """Whether what is saved shows in what the loops take or store, and takes longer than the
        loops that are more, and joining what they stack apart from residuals.
        """
        model, division, loops = cost_model(), self.division, self.known.keys()
        pieces = len(loops) * sum(n > 1 for n in division.lengths)
        inner = pieces * division.rounds if division.rounds > 1 else 0
        more = len(loops) * bool(division.rest) + (0 if inner else pieces - len(loops))
        stacked = sum(stack.result.nbytes for stack in self.replay.stacks)
        saved = self.seconds + model.kept(self.nbytes, stacked)
        whole = sum(loop.length * known_seconds(loop.body.ops, model) for loop in loops)
        if self.nbytes < (divided := self.replay.divided):
            return False
        shows = model.is_visible(self.nbytes, stacked) or model.is_visible(saved, whole)
        saved -= model.moved(divided)
        return shows and model.is_worth_loops(more, saved) and model.is_worth_starts(inner, saved)


def phases_of(scan: Scan) -> Phases | None:
    """The phases into which dividing a loop and the readers of its residuals gains most."""
    found = replay(scan) if scan.has_length else None
    if found is None or scan.length < limits.STEPS_DIVIDED:
        return None
    choices = _of_loops(found)
    every = [numbers for each in choices.values() for numbers in each.values()]
    distinct = [*{numbers.tobytes(): numbers for numbers in every}.values()]
    ways = [distinct, *([numbers] for numbers in distinct if len(distinct) > 1)]
    divisions = dict.fromkeys(d for way in ways if (d := _division(way)) is not None)
    candidates = [divided(found, division, choices) for division in divisions]
    worth = [each for each in candidates if each.is_worth_it]
    return max(worth, key=lambda each: (each.nbytes, each.seconds), default=None)


def _of_loops(found: Replay) -> Mapping[Scan, Choices]:
    """The choices of a loop, and of those that read its residuals."""
    return {loop: dict(_choices(loop)) for loop in (found.scan, *found.readers)}


def _choices(scan: Scan) -> Iterator[tuple[Value, Numbers]]:
    """The scalars of a step that choose a branch or a case, and are known for each step."""
    seen: set[Value] = set()
    for op in scan.body.walk():
        if not isinstance(op, Cond) and op.name != "select_n":
            continue
        root = predicate_root(op.operands[0])
        if root.region is scan.body and root.shape == () and root not in seen:
            seen.add(root)
            numbers = numbers_at(root, scan)
            if numbers is not None:
                yield root, numbers


def _division(choices: Sequence[Numbers]) -> Division | None:
    """The pieces in which each choice has one number: of all rows, or of rounds of as many."""
    if not choices:
        return None
    numbers = np.stack([each.astype(np.int64) for each in choices])
    length = numbers.shape[1]
    for rows in (length, *range(2, min(limits.STEPS_OF_A_ROUND, length // 2) + 1)):
        changes = 1 + np.flatnonzero((numbers[:, 1:rows] != numbers[:, : rows - 1]).any(0))
        whole = length - length % rows
        few = 0 < len(changes) < limits.PHASES - (whole < length)
        if not few or whole < limits.STEPS_DIVIDED:
            continue
        if (numbers[:, rows:whole] == numbers[:, : whole - rows]).all():
            lengths = np.diff([0, *changes, rows])
            return Division(tuple(int(n) for n in lengths), length // rows, length - whole)
    return None


def divided(
    found: Replay, division: Division, choices: Mapping[Scan, Choices] | None = None
) -> Phases:
    """A division of a loop and of the readers of its residuals, and what it saves."""
    choices = _of_loops(found) if choices is None else choices
    scan = found.scan
    residuals = {stack.result: stack.value for stack in found.stacks}
    known: dict[Scan, list[KnownInPhase]] = {loop: [] for loop in choices}
    seconds, nbytes = 0.0, 0
    for piece, length in enumerate(division.lengths):
        stacking = _phase(scan, _facts(choices[scan], division, piece))
        known[scan].append(stacking)
        rows = division.rounds * length
        read: set[Value] = set()
        for reader in found.readers:
            facts = _facts(choices[reader], division, piece)
            streams = [s for s in reader.streams if s.operand in residuals]
            for stream in streams:
                row = stacking.get(residuals[stream.operand])
                if isinstance(row, Splat):
                    facts[stream.param] = row
            reading = _phase(reader, facts)
            known[reader].append(reading)
            needed = _needed(reader, reading, reader.body.outputs)
            read |= {s.operand for s in streams if s.param in needed}
            seconds += rows * _spared(reader, reading, needed)
        stored = {result: value for result, value in residuals.items() if result in read}
        others = [stack.value for stack in scan.stacks if stack.result not in residuals]
        others += [carry.next for carry in scan.carries]
        needed = _needed(scan, stacking, (*others, *stored.values()))
        seconds += rows * _spared(scan, stacking, needed)
        kept = [v for v in stored.values() if not _is_free(stacking.get(v, v))]
        nbytes += rows * sum(v.nbytes for v in residuals.values())
        nbytes -= rows * sum(v.nbytes for v in kept)
    return Phases(found, division, known, seconds, nbytes)


def _facts(choices: Choices, division: Division, piece: int) -> dict[Value, bool | Splat]:
    """The choices that are one number in all steps of a piece, with that number."""
    starts = division.starts
    facts: dict[Value, bool | Splat] = {}
    for value, numbers in choices.items():
        rounds = numbers[: division.rounds * starts[-1]].reshape(division.rounds, starts[-1])
        told = rounds[:, starts[piece] : starts[piece + 1]]
        # Condition 2 of split-phases.
        if (told == told[0, 0]).all():
            facts[value] = bool(told[0, 0]) if value.dtype == bool else Splat(told[0, 0])
    return facts


def _phase(scan: Scan, facts: Mapping[Value, bool | Splat]) -> KnownInPhase:
    """The values of a step that its choices determine.  A product with zero is zero for cotangents
    only.
    """
    primal = Assumed(scan.body, facts)
    linear = Assumed(scan.body, facts, linear=True) if carries_cotangents(scan) else None
    found: dict[Value, Known] = {}
    values = (*scan.body.params, *(v for op in scan.body.walk() for v in op.results))
    for value in values:
        known = primal[value]
        # Condition 3 of split-phases.
        if linear is not None and is_cotangent(value, scan):
            known = linear[value]
        if known is not value:
            found[value] = known
    return found


def _needed(scan: Scan, phase: KnownInPhase, outputs: Iterable[Value]) -> set[Value]:
    """The values of a step that some outputs are made of."""
    needed, pending = set[Value](), list(outputs)
    while pending:
        value = pending.pop()
        known = phase.get(value, value)
        if not isinstance(known, Value) or known in needed or not scan.body.defines(known):
            continue
        needed.add(known)
        op = known.op
        taken = _taken(op, phase) if isinstance(op, Cond) else None
        if isinstance(op, Cond) and taken is not None:
            pending.append(op.branches[taken].outputs[known.position])
        elif op is not None:
            pending += inputs(op)
    return needed


def _taken(cond: Cond, phase: KnownInPhase) -> int | None:
    """The branch that a phase takes, if it is known."""
    selector = phase.get(cond.selector)
    return cond.taken(selector.value) if isinstance(selector, Splat) else None


def _spared(scan: Scan, phase: KnownInPhase, needed: set[Value]) -> float:
    """Seconds of the ops of a step of which nothing is needed; of a branch that is known to be
    taken, of handing on what it gives.  In a loop that is one function, moving what is made takes
    no time.
    """
    model = cost_model()
    ops = [op for op in scan.body.ops if not op.is_terminator and needed.isdisjoint(op.results)]
    conds = {op for op in ops if isinstance(op, Cond) and _taken(op, phase) is not None}
    others = [op for op in ops if op not in conds]
    if model.is_one_function(scan, sum(stack.result.nbytes for stack in scan.stacks)):
        return min(model.repeated(others), known_seconds(others, model))
    given = sum(value.nbytes for op in conds for value in op.results)
    return known_seconds(others, model) + model.moved(given)


def _is_free(known: Known) -> bool:
    """Whether nothing has to be stored to know a row."""
    return isinstance(known, Splat) or is_undefined(known)
