"""Everything that it takes to recompute the steps of a loop for loops that read its stacks row by
row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from jaxpr_opt.analysis.steps.skips import Skip, find_skip
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.analysis.values.rounding import (
    compares_rounded,
    exact_sources,
    is_discontinuous,
    may_differ,
    rounded,
)
from jaxpr_opt.ir.dataflow import backward_slice, inputs
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Cond, Op, Scan, Stack, Stream, Use, Value
from jaxpr_opt.ir.traits import COMPARISONS, are_pure, communicates, is_broadcast


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Residuals of a loop, and the ops that recompute them from the carries of a step."""

    scan: Scan
    readers: tuple[Scan, ...]
    """The loops that read them row by row."""
    stacks: tuple[Stack, ...]
    """The residuals."""
    carries: tuple[Carry, ...]
    """The carries that they depend on."""
    streams: tuple[Stream, ...]
    """The streams that they depend on."""
    ops: tuple[Op, ...]
    """The part of the step that they depend on, in order."""
    told: tuple[Value, ...]
    """Truth values that say which steps are skipped, and might say otherwise if replayed."""

    @property
    def carried(self) -> int:
        """Bytes of what a step starts with."""
        return sum(carry.param.nbytes for carry in self.carries)

    @property
    def stacked(self) -> int:
        """Bytes of the residuals of a step."""
        return sum(stack.value.nbytes for stack in self.stacks)

    @property
    def streamed(self) -> int:
        """Bytes of a row of what else is read and stacked where the steps are computed again."""
        gone = {stack.result for stack in self.stacks}
        rows = [s.param for r in self.readers for s in r.streams if s.operand not in gone]
        rows += [s.value for r in self.readers for s in r.stacks]
        return sum(row.nbytes for row in [*rows, *(s.param for s in self.streams)])

    @property
    def divided(self) -> int:
        """Bytes of arrays other than residuals that are divided or joined where its loops are."""
        loops = (self.scan, *self.readers)
        arrays = {stream.operand for loop in loops for stream in loop.streams}
        arrays |= {stack.result for loop in loops for stack in loop.stacks if stack.result.uses}
        arrays -= {stack.result for stack in self.stacks}
        return sum(v.nbytes for v in arrays if v.op is None or not is_broadcast(v.op))

    def why_not(self) -> str | None:
        """Why the steps must not be computed again; None if they may."""
        # Condition 3 of replay-segments.
        if any(value.op in self.ops for value in self.told):
            return "an op makes the predicate of the steps that are taken, and something else"
        # Condition 3 of replay-segments.
        rows = {
            stream.param: stack.value
            for stack in self.stacks
            for stream in (s for reader in self.readers for s in reader.streams)
            if stream.operand is stack.result
        }
        if compares_again(self.ops, self.scan) or compared_rows(rows, self.scan):
            return "XLA may round otherwise in the other loop what is compared there"
        for op in self.ops:
            # Condition 2 of replay-segments.
            if not are_pure(op.walk()):
                return f"replaying the loop would repeat {op.name}"
            # Condition 2 of replay-segments.
            if communicates(op):
                return f"devices may wait for each other in {op.name}, which would be repeated"
        return None


@remembered
def replay(scan: Scan) -> Replay | None:
    """The replay of a loop's residuals; None if it has no residuals."""
    found = [stack for stack in scan.stacks if _readers(scan, stack)]
    if not found:
        return None
    readers = dict.fromkeys(op for stack in found for op in _readers(scan, stack))
    told = _told(scan, found)
    carries, ops, used = _needed(scan, [stack.value for stack in found], told)
    streams = tuple(stream for stream in scan.streams if stream.param in used)
    return Replay(scan, tuple(readers), tuple(found), carries, streams, ops, told)


def _told(scan: Scan, residuals: Iterable[Stack]) -> tuple[Value, ...]:
    """The truth values of a step that are stored beside its residuals."""
    skip = find_skip(scan)
    if skip is None:
        return ()
    # Condition 3 of replay-segments.
    told = dict.fromkeys(s.value for s in residuals if may_skip_others(s.value, skip))
    if skip.kind == "carried" or may_skip_others(skip.predicate, skip):
        told[skip.predicate] = None
    return tuple(told)


def _readers(scan: Scan, stack: Stack) -> tuple[Scan, ...]:
    """The loops beside a scan that read a stack row by row; none if it is read in another way."""
    # Condition 1 of replay-segments, split-phases.
    if not all(_reads_a_row(use) and use.op.region is scan.region for use in stack.result.uses):
        return ()
    return tuple(op for op in stack.result.users if isinstance(op, Scan))


def _reads_a_row(use: Use) -> bool:
    # Condition 1 of replay-segments, split-phases.
    return isinstance(use.op, Scan) and use.position >= use.op.num_carries


def _needed(
    scan: Scan, values: Iterable[Value], told: Sequence[Value]
) -> tuple[tuple[Carry, ...], tuple[Op, ...], Set[Value]]:
    """The carries that values of a step depend on, in this step or an earlier one, the ops, and all
    values; of what is told nothing is computed.
    """
    roots, carries = list(values), dict[Carry, None]()
    while True:
        used = _reached(roots, told)
        more = [c for c in scan.carries if c.param in used and c not in carries]
        if not more:
            ops = tuple(op for op in scan.body.ops if not used.isdisjoint(op.results))
            return tuple(carries), ops, used
        carries.update(dict.fromkeys(more))
        roots.extend(carry.next for carry in more)


def _reached(roots: Iterable[Value], told: Sequence[Value]) -> Set[Value]:
    """The values that some values are computed from; of a branch, only those that they need."""
    found, left = set[Value](), list(roots)
    while left:
        value = left.pop()
        if value in found or value in told:
            continue
        found.add(value)
        if (op := value.op) is None:
            continue
        if isinstance(op, Cond):
            place = op.results.index(value)
            left += (op.selector, *(region.outputs[place] for region in op.regions))
        else:
            left += inputs(op)
    return found


def compares_again(ops: Iterable[Op], scan: Scan) -> bool:
    """Whether ops of a step, computed again, compare what XLA may round otherwise there."""
    return any(compares_rounded(each, scan.body) for op in ops for each in op.walk())


def compared_rows(rows: Mapping[Value, Value], scan: Scan) -> Set[Value]:
    """The values of a step whose rows a reader compares with each other, of which XLA may round
    both otherwise if they are computed again.

    Args:
      rows: Of each row that a reader reads, the value of the step.
      scan: The loop that makes them.
    """
    found: set[Value] = set()
    unsure = {row: value for row, value in rows.items() if rounded([value], scan.body)}
    for reader in dict.fromkeys(row.region for row in unsure):
        for op in reader.walk() if reader is not None else ():
            # Condition 5 of replay-steps.
            if op.name in COMPARISONS and is_discontinuous(op):
                sides = [{unsure[v] for v in exact_sources(x) if v in unsure} for x in op.operands]
                found |= set().union(*sides) if all(sides) else set()
    return found


def may_skip_others(value: Value, skip: Skip) -> bool:
    """Whether a truth value says which steps are skipped, and may say otherwise if replayed."""
    body = skip.scan.body
    # Condition 4 of replay-steps.
    is_known = value.region is body and isinstance(skip.skipped[value], Splat)
    if not is_known or value.dtype != bool:
        return False
    return any(map(may_differ, backward_slice([value], lambda v: v.region is not body)))
