"""A loop that stops early, unless later steps may multiply zero by a number that is not finite.

The least and the greatest number of what these steps read say so when the program runs, or the
factors themselves, if all of these steps compute the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.steps.factors import Factors, SameFactors, factors, steps_for_ranges
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.analysis.steps.splats import Known
from jaxpr_opt.analysis.values.ranges import (
    BETWEEN,
    BY_SIZE,
    Range,
    between,
    hull,
    is_finite,
    is_within,
    limits_of,
    ranged,
)
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.steps.skipped_steps import in_skipped_step
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Region, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Around:
    """A loop around one that stops, which runs it again, to its end, if it should not have, or if
    few steps are left. It carries until which row that one runs in any case, whether it is done,
    and what that one carries.
    """

    scan: Scan
    factors: Factors | SameFactors
    steps: int
    """How many steps must be left for it to pay to ask whether factors are finite."""
    start: list[Value]
    step: Region

    @property
    def until(self) -> Value:
        """The row until which the inner loop runs in any case."""
        return self.step.params[0]

    @property
    def made_again(self) -> Set[Op]:
        """The ops of a step that make factors once more when it stops."""
        found = self.factors
        return {*found.computed.ops} if isinstance(found, SameFactors) else set()

    def run(self, predicate: Region, body: Region, once: Region, rw: Rewriter) -> Sequence[Value]:
        """The results of the inner loop, whose regions are given, and one step of it."""
        scan, end, rows = self.scan, self.step.terminator, np.int32(self.scan.length)
        begun = self.step.params[2:]
        row, *left = rw.new_while(predicate, body, begun, like=scan, before=end).results
        carries = dict(zip((c.param for c in scan.carries), left, strict=False))
        if isinstance(self.factors, SameFactors):  # their ops are in the step by now
            carries |= dict(zip(once.params[1:], left, strict=True))
        finite = _finite_from(scan, self.factors, self.steps, row, carries, end, rw)
        done = rw.insert(lambda r, f: lax.bitwise_or(f, lax.ge(r, rows)), row, finite, before=end)
        rw.set_outputs(self.step, [rw.scalar(rows, np.int32), done, row, *left])
        again = rw.new_region(self.start)
        goes_on = rw.insert(lax.bitwise_not, again.params[1], before=again.terminator)
        rw.set_outputs(again, [goes_on])
        return rw.new_while(again, self.step, self.start, like=scan, before=scan).results[2:]


def surround(skip: Skip, stop: Value, inits: Sequence[Value], rw: Rewriter) -> Around:
    """The loop around one that runs until a row, or as long as its predicate is true."""
    found, steps = _asked(skip)
    until = rw.scalar(0, np.int32) if skip.kind == "carried" else stop
    start = [until, rw.scalar(False, np.bool_), *inits]
    return Around(skip.scan, found, steps, start, rw.new_region(start))


def begin_if_finite(skip: Skip, stop: Value, rw: Rewriter) -> Value:
    """The number of rows of which a loop in reverse takes the last one first: as many as told, or
    all if a step before that may multiply zero by a number that is not finite.
    """
    found, steps = _asked(skip)
    begun, scan = {c.param: c.init for c in skip.scan.carries}, skip.scan
    finite = _finite_from(scan, found, steps, stop, begun, scan, rw)
    every = np.int32(scan.length)
    return rw.insert(lambda f, rows: lax.select(f, rows, every), finite, stop, before=scan)


def _asked(skip: Skip) -> tuple[Factors | SameFactors, int]:
    """What must be finite, and how many steps must be left for it to pay to ask whether it is."""
    found = factors(skip)
    assert not isinstance(found, str)
    return found, 1 if isinstance(found, SameFactors) else steps_for_ranges(skip.scan, found)


def _finite_from(
    scan: Scan,
    found: Factors | SameFactors,
    steps: int,
    row: Value,
    carries: dict[Value, Value],
    before: Op,
    rw: Rewriter,
) -> Value:
    """Whether factors are finite in the steps of the rows from one on, if it pays to ask about so
    many; `carries` is what these are then.
    """
    if isinstance(found, SameFactors):
        known = in_skipped_step(found.computed, carries, before, rw)
        floats = [known(v) for v in found.values if dtypes.is_inexact(v.dtype)]
        return rw.insert(_are_finite, *floats, before=before)
    ask, arrays = _question(found, carries, scan.length)
    last = np.int32(scan.length - steps)

    def ask_if_it_pays(row: jax.Array, *given: jax.Array) -> jax.Array:
        nothing = lambda *_: lax.full((), False)  # noqa: E731
        finite: jax.Array = lax.cond(lax.le(row, last), ask, nothing, row, *given)
        return finite

    # A branch in a loop of few numbers is long to compile, and to ask takes no time there.
    return rw.insert(ask_if_it_pays if steps > 1 else ask, row, *arrays, before=before)


def _are_finite(*factors: jax.Array) -> jax.Array:
    """Whether all numbers are, however they are rounded."""
    told = []
    for each in factors:
        most = np.asarray(dtypes.most(each.dtype) * limits.OF_ITS_RANGE, each.dtype)
        told.append(lax.reduce_and(lax.abs(each) <= most, range(each.ndim)))
    return reduce(lax.bitwise_and, told)


def _question(
    found: Factors, left: Mapping[Value, Value], rows: int
) -> tuple[Callable[..., jax.Array], Sequence[Value]]:
    """What tells whether factors are finite in the steps from a row on, and of which arrays; `left`
    is what carries then are.
    """
    truths = [v for v in found.read if v.dtype == bool]
    reading = {v: left.get(array, array) for v, array in found.read.items() if v.dtype != bool}
    changing = {v: left[v] for v in found.changing}
    arrays = dict.fromkeys([*reading.values(), *changing.values()])
    made = [v.dtype for op, _ in found.ops for v in op.results]
    is_double = np.float64 in (*made, *(array.dtype for array in arrays))
    number = np.dtype(np.float64 if is_double else np.float32)

    sized = _read_by_size(found, reading) - {*changing.values()}

    def ask(row: jax.Array, *given: jax.Array) -> jax.Array:
        of_arrays = {
            array: _range_of(each, number, array in sized)
            for array, each in zip(arrays, given, strict=True)
        }
        truth = number.type(0), number.type(1)
        fixed = {v: of_arrays[array] for v, array in reading.items()} | dict.fromkeys(truths, truth)
        for value, each in found.bounded.items():
            fixed[value] = number.type(each.low), number.type(each.high)

        def look(moving: Sequence[Range]) -> tuple[Any, list[Range]]:
            """Whether factors are finite in a step, and the ranges of what changes after it."""
            ranges = fixed | dict(zip(changing, moving, strict=True))
            finite = _are_finite_in_step(found, ranges, number)
            return finite, [_known(v, ranges, number) for v in found.changing.values()]

        begun = [of_arrays[array] for array in changing.values()]
        if not begun:
            return lax.convert_element_type(look(begun)[0], np.bool_)

        def step(state: Any) -> Any:
            row, finite, moving = state
            told, after = look(moving)
            return lax.add(row, np.int32(1)), lax.bitwise_and(finite, told), after

        def is_left(state: Any) -> Any:
            return lax.bitwise_and(state[1], lax.lt(state[0], np.int32(rows)))

        finite: jax.Array = lax.while_loop(is_left, step, (row, lax.full((), True), begun))[1]
        return finite

    return ask, [*arrays]


def _are_finite_in_step(
    found: Factors, ranges: dict[Value, Range], number: np.dtype[Any]
) -> jax.Array | np.bool_:
    """Whether factors are finite in a step; `ranges` are those of what it reads, to which those of
    what it makes are added.
    """
    finite = [ranges[v] for v in found.values if v in ranges]
    held: dict[Range | None, list[Range]] = {}
    with np.errstate(all="ignore"):  # what is known is computed now
        for op, operands in found.ops:
            of_operands = [_known(v, ranges, number) for v in operands]
            if op.name in BETWEEN:
                made = between(op, *of_operands)
                finite += of_operands
            else:
                made = ranged(op, *of_operands)
                held.setdefault(limits_of(op, number), []).append(made)
            ranges |= dict.fromkeys(op.results, made)
        told = [is_finite(hull(*finite))] if finite else []
        told += [is_within(hull(*made), by) for by, made in held.items() if by is not None]
        return reduce(operator.and_, told) if told else np.True_


def _known(value: Known, ranges: Mapping[Value, Range], number: np.dtype[Any]) -> Range:
    if isinstance(value, Value):
        return ranges[value]
    end = dtypes.converted(value.value, number)[()]
    return end, end


def _read_by_size(found: Factors, reading: Mapping[Value, Value]) -> Set[Value]:
    """The arrays of which nothing but the greatest absolute value is asked."""
    by_ends = {v for op, operands in found.ops if op.name not in BY_SIZE for v in operands}
    ends = {array for v, array in reading.items() if v in by_ends}
    return {a for a in reading.values() if a not in ends and dtypes.is_inexact(a.dtype)}


def _range_of(array: jax.Array, number: np.dtype[Any], by_size: bool) -> Range:
    """The least and the greatest element of an array, or numbers as far from zero; nothing is known
    if it has none.
    """
    if 0 in array.shape:
        return number.type(np.nan), number.type(np.nan)
    if by_size:
        most = lax.reduce_max(lax.abs(array), range(array.ndim))
        most = lax.convert_element_type(most, number)
        return -most, most
    ends = (reduce_by(array, range(array.ndim)) for reduce_by in (lax.reduce_min, lax.reduce_max))
    least, most = (lax.convert_element_type(end, number) for end in ends)
    return least, most
