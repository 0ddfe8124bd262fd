"""The rows that a scan stacks in skipped steps, computed without running them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.analysis.steps.assume import Splat
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.ir.graph import UNDEFINED, Op, Stack, Value, backward_slice, reads
from jaxpr_opt.ir.traits import is_speculable


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """The row of a skipped step; unspecified unless one of these is set."""

    constant: Splat | None = None
    value: Value | None = None
    """A value that a skipped step computes from kept carries and outer values by `ops`."""
    ops: tuple[Op, ...] = ()
    numbers: tuple[tuple[Value, Splat], ...] = ()
    """What they read that is a number in skipped steps."""

    @property
    def is_unspecified(self) -> bool:
        return self.constant is None and self.value is None

    def all_ops(self) -> Iterator[Op]:
        """The ops and everything inside them."""
        for op in self.ops:
            yield from op.walk()


def skipped_row(skip: Skip, stack: Stack) -> SkippedRow | str:
    """What a skipped step stacks, or why it cannot be told without running the step."""
    body, known = skip.scan.body, skip.skipped[stack.value]
    if isinstance(known, Splat):
        return SkippedRow(constant=known)
    if known.op is not None and known.op.name == UNDEFINED:
        return SkippedRow()
    if (number := uniform(known)) is not None:
        return SkippedRow(constant=Splat(number))

    def number_of(value: Value) -> Splat | None:
        told = skip.skipped[value] if value.region is body else value
        return told if isinstance(told, Splat) and value is not skip.predicate else None

    ops = backward_slice(
        [known],
        lambda v: v.region is not body or v is skip.predicate or number_of(v) is not None,
    )
    moving = {s.param for s in skip.scan.streams} | {c.param for c, _ in skip.counters}
    moving |= {c.param for c in (*skip.dropped, *skip.going)}
    used = {known, *reads(ops)}
    numbers = {v: number for v in used if (number := number_of(v)) is not None}
    used -= numbers.keys()
    name = stack.value.name or stack.value.aval
    # Condition 4 of exit-loop-early.
    if not used.isdisjoint(moving):
        return f"it stacks {name}, which differs from one skipped step to the next"
    local = {v for op in ops for v in op.results} | set(body.params) | {skip.predicate}
    foreign = any(body.defines(v) and v not in local for v in used)
    # Condition 4 of exit-loop-early.
    if foreign or not all(is_speculable(op) for op in ops):
        return f"it stacks {name}, which a skipped step computes anew"
    return SkippedRow(value=known, ops=tuple(ops), numbers=tuple(numbers.items()))
