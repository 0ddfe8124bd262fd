"""Loops whose skipped steps keep some carries and still change others.

- Some carries *go on*: skipped steps change each of them, in less time than a step that is taken.
  ``trace.at[t].set(where(done, 0, error))`` writes a row in each step, skipped or not.
- Some carries *settle*: the first skipped step changes them, later ones do not.  ``previous =
  f(state)`` is the same after each of them, and so is ``total + 0 * reward(state)``: what it was,
  or NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jaxpr_opt.analysis.steps.computed import Computed
from jaxpr_opt.analysis.steps.incremental_assume import Assumable
from jaxpr_opt.analysis.steps.masked_rows import facts_of
from jaxpr_opt.analysis.steps.predicates import (
    asked_for,
    candidates_of,
    counted,
    is_kind,
    is_of_numbers,
    kind_of,
    slice_of,
)
from jaxpr_opt.analysis.steps.skips import Skip, find_ends, find_skips
from jaxpr_opt.analysis.steps.splats import Known, Splat, is_zero, vanishes
from jaxpr_opt.analysis.values.linearity import carries_cotangents
from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.traits import is_repeatable

_REPEATABLE = frozenset({"and", "max", "min", "or"})
"""Ops that change nothing when they are done again with the same other operand."""


@remembered
def find_goings(scan: Scan) -> tuple[Skip, ...]:
    """The first way in which a scan skips steps but for what goes on; none if it skips by another
    way.
    """
    if any(isinstance(each, Skip) for each in (*find_skips(scan), *find_ends(scan))):
        return ()
    return next(((each,) for each in _goings(scan)), ())


def _goings(scan: Scan) -> Iterator[Skip]:
    counters, _, changing = counted(scan)
    candidates = candidates_of(scan)
    a_step = cost_model().step_seconds(scan.body)
    if not candidates or not changing or not cost_model().is_worth_loops(1, scan.length * a_step):
        return
    step = Assumable(scan.body, linear=carries_cotangents(scan))
    for predicate in step.until_worn(candidates):
        kind = kind_of(scan, predicate)
        # Condition 11 of exit-loop-early.
        if not is_kind(kind) or kind == "mixed":
            continue
        if is_of_numbers(predicate):
            continue
        ops = tuple(slice_of(scan, predicate))
        asked = asked_for(predicate, ops)
        for taken_when in (True, False):
            skipped = step.under(facts_of(scan, predicate, not taken_when))
            left = tuple(c for c in changing if not skipped.keeps(c))
            # Condition 11 of exit-loop-early.
            if any(c.param in asked for c in left):
                continue
            skip = Skip(
                scan=scan,
                predicate=predicate,
                taken_when=taken_when,
                kind=kind,
                slice=ops,
                counters=counters,
                skipped=skipped,
                going=left,
            )
            step.count_walked(len(step.ops))  # of each it is asked now whether it goes on
            does = going_on(skip).ops
            if settles(skip) or cost_model().is_little_of_a_step(does, a_step):
                yield skip
                break


def going_on(skip: Skip) -> Computed:
    """What a skipped step computes of the carries that it changes."""
    return skip.computed(c.next for c in (*skip.going, *(c for c, _ in skip.counters)))


def settles(skip: Skip) -> bool:
    """Whether a second skipped step would make of carries what the first has made."""
    fixed = _Fixed(skip)
    return all(fixed.holds(c.next) for c in skip.going)


class _Fixed:
    """The values that are the same in all skipped steps, where the carries are what the first
    skipped step has made of them.
    """

    def __init__(self, skip: Skip) -> None:
        scan, self._skipped = skip.scan, skip.skipped
        self._told: dict[Value, Known] = {}
        """What values are in a skipped step, which is asked for once."""
        self._moving = {s.param for s in scan.streams} | {c.param for c, _ in skip.counters}
        self._moving |= {c.param for c in skip.going}
        self._nothing: set[Value] = set()
        """Zeros of either sign, or NaNs."""
        again = {r: c for c in skip.going if isinstance(r := self._tell(c.next), Value)}
        for op in scan.body.walk():
            if self._vanishes(op):
                self._nothing.update(op.results)
            if is_repeatable(op) and all(map(self.holds, inputs(op))):
                continue
            mine = [again[r] for r in op.results if r in again]
            # Condition 12 of exit-loop-early.
            if len(mine) != 1 or not self._repeats(op, mine[0].param):
                self._moving.update(op.results)

    def holds(self, value: Value) -> bool:
        """Whether a value is the same in all skipped steps."""
        known = self._tell(value)
        return isinstance(known, Splat) or known not in self._moving

    def _tell(self, value: Value) -> Known:
        if value not in self._told:
            self._told[value] = self._skipped[value]
        return self._told[value]

    def _vanishes(self, op: Op) -> bool:
        """Whether an op makes zeros or NaNs: no integer is made of those."""
        known = [self._known(v) for v in op.operands]
        if not any(map(is_zero, known)):
            return False
        is_rounded = any(dtypes.is_inexact(v.dtype) for v in op.operands)
        makes_numbers = is_rounded and not all(dtypes.is_inexact(v.dtype) for v in op.results)
        # Condition 12 of exit-loop-early.
        return not makes_numbers and vanishes(op, known)

    def _known(self, value: Value) -> Known:
        known = self._tell(value)
        is_nothing = isinstance(known, Value) and known in self._nothing
        return Splat(np.zeros((), value.dtype)[()]) if is_nothing else known

    def _repeats(self, op: Op, before: Value) -> bool:
        """Whether an op done again, on its result instead of what was before, gives the same."""
        known = [self._tell(v) for v in op.operands]
        others = [v for v, k in zip(op.operands, known, strict=True) if k is not before]
        if op.name in _REPEATABLE:
            return all(map(self.holds, others))
        if op.name == "select_n":
            return known[0] is not before and all(map(self.holds, others))
        written = access(op)
        if written is not None and written.kind == "write":
            return known[0] is before and all(map(self.holds, op.operands[1:]))
        return len(op.results) == 1 and self._is_near(op.result, before)

    def _is_near(self, value: Value, before: Value) -> bool:
        """Whether a value is what was before, with zeros added, or NaNs."""
        pending = [value]
        for each in pending:
            known = self._tell(each)
            if known is before:
                return True
            op = known.op if isinstance(known, Value) else None
            if op is None or op.name not in ("add", "add_any", "sub"):
                continue
            first, second = op.operands
            ways = [(first, second)] if op.name == "sub" else [(first, second), (second, first)]
            pending += [
                mine for mine, other in ways if self.holds(other) and is_zero(self._known(other))
            ]
        return False
