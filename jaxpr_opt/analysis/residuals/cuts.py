"""Residuals that a forward loop stores for the loops that read it row by row: minimum cuts of its
step.

A residual is some value of a step. Instead of it, values that it is computed from can be stacked,
and the rest recomputed where it is read. A `Cut` names both.

`cheapest` finds the cut that costs least, at prices that the caller gives, by a minimum cut of a
flow network (`jaxpr_opt.analysis.residuals.networks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from jaxpr_opt.analysis.residuals.networks import cheapest_leaves
from jaxpr_opt.analysis.residuals.stack_consumers import Stacked, routes
from jaxpr_opt.analysis.steps.assume import Assumed
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.analysis.steps.splats import Known
from jaxpr_opt.analysis.values.constants import is_undefined
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import backward_slice, inputs
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Cond, Constant, Op, Scan, Stack, Value
from jaxpr_opt.ir.nesting import with_parents

Residual = tuple[Stack, Value]
"""A stack, and the value of a step that its readers need: the one of a step that is taken."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Residuals, what to store instead of them, and how to get them from it."""

    residuals: tuple[Residual, ...]
    stored: tuple[Value, ...]
    """Values of the forward body that must be stacked, if they are not already."""
    ops: tuple[Op, ...]
    """What is computed again, in order; it reads what is stored, rows of streams, outer values."""
    new_bytes: int
    """Bytes of the stacks that are not there yet."""
    replay_seconds: float
    """What computing one row again takes."""

    @property
    def old_bytes(self) -> int:
        """Bytes of the stacks that go."""
        return sum(stack.result.nbytes for stack, _ in self.residuals)


@remembered
def residuals(scan: Scan, *, nests: bool = False) -> tuple[Residual, ...]:
    """Stacks that loops of as many steps read row by row, computed in a step of `scan`; with those
    that loops around it stack, if `nests`.

    A row that a skipped step leaves unspecified is read for steps that are taken only, and one that
    all branches but one leave unspecified for steps that take this branch.
    """
    skip = find_skip(scan)
    # In a batch, a step that is taken is so by some rows only.
    alone = skip if skip is not None and skip.predicate.shape == () else None
    taken = Assumed(scan.body, {alone.predicate: alone.taken_when}) if alone is not None else None
    found = []
    for stack in scan.stacks:
        known: Known = stack.value
        # Condition 3 of replay-steps.
        if alone is not None and taken is not None and _is_unspecified(alone.skipped[stack.value]):
            known = taken[stack.value]  # only then
        if isinstance(known, Value) and known.region is scan.body and isinstance(known.op, Cond):
            known = _of_one_branch(known.op, known)
        if not isinstance(known, Value) or known.op is None or not scan.body.defines(known):
            continue
        # Condition 1 of narrow-residuals, replay-steps.
        if routes(stack.result, nests=nests):
            found.append((stack, known))
    return tuple(found)


def _of_one_branch(cond: Cond, result: Value) -> Value:
    """The value that the only branch which specifies a result gives; else the result."""
    given = [v for v in cond.outcomes[result.position].values if not is_undefined(v)]
    return given[0] if len(given) == 1 and cond.defines(given[0]) else result


def _is_unspecified(known: Known) -> bool:
    return isinstance(known, Value) and is_undefined(known)


@remembered
def available(scan: Scan) -> Mapping[Value, Value]:
    """Values of a step that are stacked already, each with its stack.

    The stack of a value that skipped steps leave unspecified does not supply what is read of them.
    """
    found = residuals(scan, nests=True)
    always = [value for stack, value in found if stack.value is value]
    made_of = {
        v for op in backward_slice(always, lambda v: not scan.body.defines(v)) for v in inputs(op)
    }
    return {
        value: stack.result
        for stack, value in found
        # Condition 2 of narrow-residuals.
        if value not in made_of
    } | {s.value: s.result for s in scan.stacks}


def outermost(scan: Scan, found: Iterable[Residual]) -> Scan:
    """The outermost loop around `scan` that stacks a residual again; `scan` itself if none does.

    What is defined outside of it is known to all that reads the residuals.
    """
    beyond = {
        hop.scan
        for stack, _ in found
        for route, _ in routes(stack.result, nests=True) or ()
        for hop in route
        if isinstance(hop, Stacked)
    }
    around = [op for op in with_parents(scan.parent) if isinstance(op, Scan) and op in beyond]
    return [scan, *around][-1]


def known_to_readers(scan: Scan, found: Iterable[Residual]) -> Set[Value]:
    """Values of a step that all readers of residuals have anyway: rows of streams, and values that
    are stacked as far out as the residuals are.
    """
    nest = outermost(scan, found)
    streams = streamed(scan, nest)
    return streams | {v for v, stack in available(scan).items() if _leaves(stack, nest)}


def streamed(scan: Scan, nest: Scan) -> Set[Value]:
    """Rows of streams of a step that all loops of a nest stream."""
    return {stream.param for stream in scan.streams if _enters(stream.operand, scan, nest)}


def _enters(operand: Value, scan: Scan, nest: Scan) -> bool:
    """Whether what a loop streams is streamed by all loops of a nest around it."""
    around = scan.parent
    if scan is nest or not isinstance(around, Scan):
        return scan is nest
    stream = around.stream_of(operand)
    return stream is not None and _enters(stream.operand, around, nest)


def _leaves(stack: Value, nest: Scan) -> bool:
    """Whether a stack is stacked by all loops of a nest."""
    return stack.region is nest.region or any(
        _leaves(around.results[position], nest)
        for op, position in stack.uses
        if op.is_terminator and isinstance(around := op.parent, Scan)
        if position >= around.num_carries
    )


def cut(scan: Scan, found: Sequence[Residual], keep: Callable[[Value], bool]) -> Cut | None:
    """The cut that stops at the step's inputs and at values for which `keep` holds."""
    body = scan.body

    def stop(value: Value) -> bool:
        return value.owner is body or not body.defines(value) or keep(value)

    chosen = [(stack, value) for stack, value in found if not stop(value)]
    ops = backward_slice([value for _, value in chosen], stop)
    made = {v for op in ops for v in op.results}
    read = dict.fromkeys(v for op in ops for v in inputs(op) if not isinstance(v, Constant))
    leaves = [v for v in read if v not in made and body.defines(v)]
    streams = streamed(scan, outermost(scan, found))
    stored = [v for v in leaves if v not in streams]
    # Condition 2 of replay-steps.
    if not chosen or any(not _can_store(v, scan) for v in stored):
        return None
    already = available(scan)
    new = sum(v.nbytes for v in stored if v not in already) * scan.length
    return Cut(tuple(chosen), tuple(stored), tuple(ops), new, cost_model().run(ops))


def hidden(scan: Scan, nest: Scan, ops: Iterable[Op]) -> list[Value]:
    """The values of surrounding loops that ops of a step read, up to the outermost loop that stacks
    the residuals again.  Readers of the residuals do not have them.
    """
    read = dict.fromkeys(v for op in ops for v in inputs(op))
    return [v for v in read if nest.body.defines(v) and not scan.body.defines(v)]


def cheapest(
    scan: Scan,
    found: Sequence[Residual],
    store: Callable[[Value], int],
    repeat: Callable[[Op], int | None],
    fetched: Set[Op] = frozenset(),
) -> Cut | None:
    """The cut that costs least. `store` is the price of storing a value, `repeat` that of computing
    an op again; None if that must not be. Of equal cuts, the one that repeats least.

    What ops read of the loops around is not known to the readers, unless it is `fetched`.
    """
    body, nest = scan.body, outermost(scan, found)
    residual = {value: None for _, value in found}

    def repeat_in_nest(op: Op) -> int | None:
        # Condition 2 of narrow-residuals.
        return None if op not in fetched and hidden(scan, nest, [op]) else repeat(op)

    kept = cheapest_leaves(
        residual,
        maker=lambda value: value.op,
        operands=lambda op: filter(body.defines, inputs(op)),
        store=lambda v: store(v) if v in residual or _can_store(v, scan) else None,
        repeat=repeat_in_nest,
    )
    return cut(scan, found, keep=kept.__contains__)


def _can_store(value: Value, scan: Scan) -> bool:
    """A value of the body itself, or of a branch of one of its conds."""
    home = value.region
    owner = home.owner if home is not None else None
    return home is scan.body or (isinstance(owner, Cond) and owner.region is scan.body)
