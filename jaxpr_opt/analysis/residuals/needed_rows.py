"""The rows of a stack that are needed, where it is known before the program runs which steps make
them and which steps read them.

A step that does something every tenth time, ``cond(t % 10 == 0, ...)``, leaves rows for its
transpose in each step. Only a tenth of them are read. Others repeat the row before: what such a
step makes is carried unchanged through the next nine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxpr_opt.analysis.residuals.stack_consumers import Route, Rows, SplitAxis, routes
from jaxpr_opt.analysis.values.constants import is_undefined
from jaxpr_opt.analysis.values.step_numbers import Numbers, known_numbers, numbers_at, taken_at
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    dimensions_of,
    has_unique_indices,
    numbers_of,
    slice_sizes_of,
    starts_of,
    strides_of,
    unsorted,
)
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Cond, Op, Region, Scan, Stack, Value
from jaxpr_opt.ir.nesting import dominates
from jaxpr_opt.ir.traits import is_speculable

Writers = tuple[tuple[Region, Value], ...]


@dataclass(frozen=True, slots=True)
class NeededRows:
    """`numbers` says for each step in which of `count` rows it leaves what is needed of it.

    Other steps that write do so where a later step writes again, or to a last row that nobody
    reads.
    """

    numbers: Numbers
    count: int
    reads: tuple[tuple[Route, Value, tuple[Region, ...]], ...]
    """Each way to a row, the row, and the branches of the reading step that read it, or its body.
    """
    picks: tuple[tuple[Op, Numbers], ...]
    """Or the slices and gathers that are read, and of which rows among those."""
    writers: Writers
    """Branches of one cond of the step that write all rows, and what each writes; none if no cond
    does."""


def needed_rows(scan: Scan, stack: Stack) -> NeededRows | None:
    """Of a stack that loops of as many steps read row by row, or of which rows are read at known
    places; None if it is known of no row that it is not needed.
    """
    made = steps_of(scan)
    picked = _picked(stack.result, np.arange(scan.length)) if made is not None else ()
    ways = routes(stack.result, nests=True) if not picked else ()
    # Condition 4 of stack-needed-rows.
    if any(isinstance(hop, SplitAxis) for way, _ in ways or () for hop in way):
        return None
    found = [(way, row, *_read(way, row)) for way, row in ways or ()]
    # Condition 4 of stack-needed-rows.
    if made is None or not (found or picked):
        return None
    taken = [np.isin(np.arange(scan.length), rows) for _, rows in picked]
    read = _any([*taken, *(steps for *_, steps in found)])
    wanted = made.in_order(read & made.given(stack.value))
    starts = made.in_order(~made.repeats(stack.value, 0))
    if wanted.all() and starts[1:].all():
        return None
    starts[0] = True
    run = np.cumsum(starts) - 1
    needed: Numbers = np.bincount(run, weights=wanted) > 0
    numbers: Numbers = (np.cumsum(needed) - needed)[run].astype(np.int32)
    times = [made.in_order(steps) for steps in (wanted, needed[run] & starts)]
    writers, writes = made.writers(stack.value, times)
    last = int(numbers[made.in_order(writes)].max(initial=0))
    rows = made.in_order(np.minimum(numbers, last))
    picks = tuple((op, rows[taken]) for op, taken in picked)
    reads = tuple((way, row, regions) for way, row, regions, _ in found)
    # Condition 5 of stack-needed-rows.
    is_read_alike = all(op.name == "gather" or _is_even(part) for op, part in picks)
    return NeededRows(rows, last + 1, reads, picks, writers) if is_read_alike else None


def _picked(
    array: Value, rows: Numbers, left: int = limits.WAY_TO_AN_INDEX
) -> tuple[tuple[Op, Numbers], ...]:
    """The slices and gathers that are read of an array, maybe of its reverse, and the rows of each;
    none if other ops read it, or rows in part.
    """
    found: list[tuple[Op, Numbers]] = []
    for op, position in array.uses:
        if op.name == "gather" and position == 0:
            places = _places(op)
            # Condition 4 of stack-needed-rows.
            if places is None:
                return ()
            found.append((op, rows[places]))
            continue
        # Condition 4 of stack-needed-rows.
        if op.name == "slice" and op.result.shape[1:] == array.shape[1:] and op.result.size:
            taken = rows[starts_of(op)[0] :: strides_of(op)[0]][: op.result.shape[0]]
        elif op.name == "rev" and dimensions_of(op) == (0,):
            taken = rows[::-1]
        else:
            return ()
        found += (left and _picked(op.result, taken, left - 1)) or ((op, taken),)
    return tuple(found)


def _places(gather: Op) -> Numbers | None:
    """The rows that a gather reads, all of each; None if that is not known, if one is out of range,
    or if more is promised of their order.
    """
    array, index = gather.operands
    numbers = numbers_of(gather)
    is_of_rows = (
        numbers.collapsed_slice_dims == numbers.start_index_map == (0,)
        and not numbers.operand_batching_dims
        and slice_sizes_of(gather) == (1, *array.shape[1:])
    )
    is_in_any_order = unsorted(gather) == gather.params and not has_unique_indices(gather)
    is_known = is_of_rows and is_in_any_order and dtypes.is_integer(index.dtype)
    places = known_numbers(index) if is_known else None
    if places is None or not places.size:
        return None
    places = places.astype(np.int64)
    return places if (places >= 0).all() and (places < array.shape[0]).all() else None


def _is_even(rows: Numbers) -> bool:
    """Whether rows follow each other at one distance."""
    distances = np.unique(np.diff(rows))
    return len(distances) < 2 and 0 not in distances


def _read(way: Route, row: Value) -> tuple[tuple[Region, ...], Numbers]:
    """The branches that read a row, and the steps that take them."""
    last = way[-1]
    assert isinstance(last, Rows)
    reader = last.scan
    found: dict[Region, Numbers] = {}
    for use in row.uses:
        cond = reader.body.ancestor(use.op)
        taken = taken_at(cond, reader) if isinstance(cond, Cond) else None
        # Condition 2 of stack-needed-rows.
        if taken is None or not isinstance(cond, Cond) or use.op is cond:
            return (reader.body,), np.ones(reader.length, bool)
        branch = next(i for i, b in enumerate(cond.branches) if b.reads(use))
        found[cond.branches[branch]] = taken == branch
    return tuple(found), _any([np.zeros(reader.length, bool), *found.values()])


def _any(steps: list[Numbers]) -> Numbers:
    found: Numbers = np.logical_or.reduce(steps)
    return found


@remembered
def steps_of(scan: Scan) -> _Steps | None:
    """The facts that are known of each step of a loop; None if the steps are too many."""
    is_known = scan.has_length and 0 < scan.length <= limits.STEPS_KNOWN
    return _Steps(scan) if is_known else None


class _Steps:
    """What a loop's steps make of a value, as far as it is known which branches they take; all
    answers are for each row.
    """

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self.found: dict[Value, Numbers] = {}
        self.always, self.never = np.ones(scan.length, bool), np.zeros(scan.length, bool)

    def in_order(self, rows: Numbers) -> Numbers:
        """Rows in the order of the steps, or back."""
        return rows[::-1] if self.scan.reverse else rows

    def writers(self, value: Value, times: list[Numbers]) -> tuple[Writers, Numbers]:
        """The branches of one cond that are taken at all of some times, and at the fewest others;
        none if they are taken in every step.  And the steps that take them.
        """
        best: tuple[Writers, Numbers] = (), self.always
        for cond in self.scan.body.ops:
            if not isinstance(cond, Cond) or not (value.op is cond or dominates(value, cond)):
                continue
            taken = taken_at(cond, self.scan)
            if taken is None:
                continue
            for steps in times:
                chosen = np.unique(taken[steps])
                writes = np.isin(taken, chosen)
                if writes.sum() < best[1].sum():
                    branches = [cond.branches[int(number)] for number in chosen]
                    best = tuple((each, _left(value, each)) for each in branches), writes
        return best

    def given(self, value: Value) -> Numbers:
        """The steps in which a value is specified."""
        # Condition 1 of stack-needed-rows.
        left = [taken for case, taken in self._cases(value) if is_undefined(case)]
        return ~_any([self.never, *left])

    def repeats(self, value: Value, depth: int) -> Numbers:
        """The steps in which a value is, bit by bit, what it was in the step before."""
        if not self.scan.body.defines(value):
            return self.always
        if value not in self.found:
            self.found[value] = self.never  # while it is looked for
            self.found[value] = self._find(value, depth + 1)
        return self.found[value]

    def _find(self, value: Value, depth: int) -> Numbers:
        if depth > limits.TERMS_OF_A_SUM:
            return self.never
        carry = self.scan.carry_of(value) if value.op is None else None
        if carry is not None:
            return self._later(self._kept(carry))
        kept = [self._kept(c) for c in self.scan.carries if c.next is value]
        op, none = value.op, self.never
        if op is None or op.regions or not is_speculable(op) or op.region is not self.scan.body:
            return _any([none, *kept])
        alike = self.always
        for operand in op.operands:
            alike = alike & self.repeats(operand, depth) if alike is not none else none
            alike = alike if alike.any() else none
        # Condition 3 of stack-needed-rows.
        return _any([alike, *kept])

    def _kept(self, carry: Carry) -> Numbers:
        """The steps that leave a carry as they found it."""
        if carry.is_invariant:
            return self.always
        cases = self._cases(carry.next)
        # Condition 3 of stack-needed-rows.
        return _any([self.never, *(s for v, s in cases if v is carry.param)])

    def _later(self, steps: Numbers) -> Numbers:
        """The steps after these."""
        later = self.never.copy()
        if self.scan.reverse:
            later[:-1] = steps[1:]
        else:
            later[1:] = steps[:-1]
        return later

    def _cases(self, value: Value) -> list[tuple[Value, Numbers]]:
        """The values that a cond or a select may choose, each with the steps in which it does, if
        known.
        """
        op = value.op
        if op is None or op.region is not self.scan.body:
            return []
        if isinstance(op, Cond):
            taken, cases = taken_at(op, self.scan), op.outcomes[value.position].values
        elif op.name == "select_n" and not op.operands[0].shape:
            taken, cases = numbers_at(op.operands[0], self.scan), op.operands[1:]
        else:
            return []
        if taken is None:
            return []
        return [(case, taken == number) for number, case in enumerate(cases)]


def _left(value: Value, branch: Region) -> Value:
    """The output of a branch for a result of its cond; any other value as it is."""
    return branch.outputs[value.position] if value.op is branch.owner else value
