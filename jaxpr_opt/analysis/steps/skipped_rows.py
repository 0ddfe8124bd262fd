"""The rows that a scan stacks in skipped steps, computed without running them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.analysis.steps.computed import Computed
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.ir.graph import UNDEFINED, Op, Stack, Value
from jaxpr_opt.ir.traits import is_speculable

_NOTHING = Computed((), {})


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """The row of a skipped step; unspecified unless one of these is set."""

    constant: Splat | None = None
    value: Value | None = None
    """A value that a skipped step computes from kept carries and outer values."""
    computed: Computed = _NOTHING

    @property
    def is_unspecified(self) -> bool:
        return self.constant is None and self.value is None

    @property
    def ops(self) -> tuple[Op, ...]:
        """What a skipped step computes the value by."""
        return self.computed.ops

    def all_ops(self) -> Iterator[Op]:
        """The ops and everything inside them."""
        for op in self.ops:
            yield from op.walk()


def skipped_row(skip: Skip, stack: Stack) -> SkippedRow | str:
    """What a skipped step stacks, or why it cannot be told without running the step."""
    known = skip.skipped[stack.value]
    if isinstance(known, Splat):
        return SkippedRow(constant=known)
    if known.op is not None and known.op.name == UNDEFINED:
        return SkippedRow()
    if (number := uniform(known)) is not None:
        return SkippedRow(constant=Splat(number))
    computed = skip.computed([stack.value])
    moving = {s.param for s in skip.scan.streams} | {c.param for c, _ in skip.counters}
    moving |= {c.param for c in (*skip.dropped, *skip.going)}
    name = stack.value.name or stack.value.aval
    # Condition 4 of exit-loop-early.
    if any(isinstance(v, Value) and v in moving for v in computed.known.values()):
        return f"it stacks {name}, which differs from one skipped step to the next"
    # Condition 4 of exit-loop-early.
    if not all(map(is_speculable, computed.ops)):
        return f"it stacks {name}, which a skipped step computes anew"
    return SkippedRow(value=stack.value, computed=computed)
