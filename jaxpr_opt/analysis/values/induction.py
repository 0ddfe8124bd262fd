"""Integers that are affine in the steps of the loops around them.

`affine(v)` finds ``offset + sum(stride * index) + sum(factor * step)``: over the indices of the
array `v`, and over the step (row number, in either direction) of each enclosing scan. It handles
iotas, counters that a scan carries, arrays that one scan stacks and another reads back row by row,
conversions, slices and reshapes, and the normalisation of negative indices (``select_n(i < 0, i, i
+ n)``), which a known range decides.

`bounds(v)` is the least and the greatest value an element may have.

Both compute in the program's integer types: a value that might wrap around is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxpr_opt.analysis.values.affine import RULES, Affine, reshaped, spread, stacked
from jaxpr_opt.analysis.values.constants import captured_indices, uniform
from jaxpr_opt.analysis.values.intervals import (
    COMPARED_WITH_ZERO,
    INTERVALS,
    JOINING,
    LOGIC,
    SAME_ELEMENTS,
    Interval,
    hull,
    span,
)
from jaxpr_opt.analysis.values.renaming import original
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    axes_of,
    dimension_of,
    is_in_order,
    starts_of,
    strides_of,
)
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import other_side
from jaxpr_opt.ir.facts import memory, remembered
from jaxpr_opt.ir.graph import Carry, Constant, Op, Scan, Value

_PLACES = frozenset({"argmax", "argmin"})
"""Ops that say where along an axis an element is."""

StepsOfNest = Mapping[Scan, int]
"""Loops, the outermost first, and by how many steps of one loop that they may replace each of their
steps goes on."""


@remembered
def affine(value: Value) -> Affine | None:
    """An integer array as an affine function of its indices and of the steps of the loops around
    it; None if it is none.
    """
    return _Search(value).affine(value, 0)


@remembered
def component(vector: Value, number: int) -> Affine | None:
    """Element `number` of the last axis of an integer array, as such a function of the other
    indices.

    An index vector need not be affine as a whole: its components are joined by `concatenate`.
    """
    return _Search(vector).component(vector, number, 0)


def in_nest(value: Value, number: int | None, scan: Scan, nest: StepsOfNest) -> Affine | None:
    """The same of a value, or of a component of it, if `scan` were divided into a nest of loops."""
    search = _Search(value, {scan: nest})
    return search.affine(value, 0) if number is None else search.component(value, number, 0)


def after_first_step(value: Value, number: int | None, scan: Scan) -> Affine | None:
    """The same of the step that follows each, of a loop that runs forward: where the first step is
    the only one in which an index is counted from the end, as that of ``errors[step - 1]``.
    """
    search = _Search(value, {}, after_first=scan)
    return search.affine(value, 0) if number is None else search.component(value, number, 0)


@remembered
def bounds(value: Value) -> Interval | None:
    """The least and the greatest integer that an element of an array may be."""
    return _Search(value).bounds(value, 0)


def _is_integer(value: Value) -> bool:
    return dtypes.is_integer(value.dtype)


class _Search:
    """One question: values in progress are unknown, so that a carry is not explained by itself.

    What is found on the way is known to the next question, too; what is not found may only be in
    progress.
    """

    def __init__(
        self,
        about: Value,
        nest: Mapping[Scan, StepsOfNest] | None = None,
        after_first: Scan | None = None,
    ) -> None:
        self.nest = nest or {}
        self.after_first = after_first
        known = memory(about, _Search) if nest is None else {}
        self.known: dict[tuple[Value, int | None], Affine] = known
        self.unknown: set[tuple[Value, int | None]] = set()
        self.ranges: dict[Value, Interval | None] = {}

    # ------------------------------------------------------------ affine

    def affine(self, value: Value, depth: int) -> Affine | None:
        return self._memoised(value, None, depth, self._find)

    def component(self, value: Value, number: int, depth: int) -> Affine | None:
        """`affine` of ``value[..., number]``."""
        return self._memoised(value, number, depth, lambda v, d: self._find_component(v, number, d))

    def _memoised(
        self,
        value: Value,
        number: int | None,
        depth: int,
        find: Callable[[Value, int], Affine | None],
    ) -> Affine | None:
        key = (value, number)
        if key in self.known:
            return self.known[key]
        if key in self.unknown or depth > limits.WAY_TO_AN_INDEX or not _is_integer(value):
            return None
        self.unknown.add(key)
        found = find(value, depth + 1)
        if found is None:
            return None
        shape = value.shape if number is None else value.shape[:-1]
        found = spread(found, shape)
        low, high = dtypes.limits(value.dtype)
        least, most = found.range(shape)
        if least < low or high < most:
            return None
        self.known[key] = found
        return found

    def _find(self, value: Value, depth: int) -> Affine | None:
        number = uniform(value)
        if number is not None:
            return Affine(int(number), (0,) * len(value.shape))
        if isinstance(value, Constant):
            return _progression(value)
        op = value.op
        if isinstance(op, Scan):
            return self._of_scan(op, value, depth)
        if op is not None:
            rule = RULES.get(op.name)
            return rule(self, op, depth) if rule is not None else None
        owner = value.region.owner if value.region is not None else None
        return self._of_param(owner, value, depth) if isinstance(owner, Scan) else None

    def _of_param(self, scan: Scan, param: Value, depth: int) -> Affine | None:
        """A row of a stream, or a counter."""
        nest = self.nest.get(scan)
        if nest is None:
            found = self._of_step(scan, param, depth)
            return self._shifted(found, scan) if found is not None else None
        stream = scan.stream_of(param)
        table = _table(stream.operand, nest) if stream is not None else None
        rows = self.affine(table, depth) if table is not None else None
        if rows is not None:
            return _in_steps(rows, nest)
        found = self._of_step(scan, param, depth)
        if found is None:
            return None
        factor = found.steps.get(scan, 0)
        steps = {s: k for s, k in found.steps.items() if s is not scan}
        steps |= {loop: factor * stride for loop, stride in nest.items()}
        return Affine(found.offset, found.strides, steps)

    def _of_step(self, scan: Scan, param: Value, depth: int) -> Affine | None:
        stream = scan.stream_of(param)
        if stream is not None:
            rows = self.affine(stream.operand, depth)
            if rows is None:
                return None
            lead, *rest = rows.strides
            return Affine(rows.offset, tuple(rest), {**rows.steps, scan: lead})
        carry = scan.carry_of(param)
        counted = self._counter(scan, carry, depth) if carry is not None else None
        if counted is None:
            return None
        init, step = counted
        if scan.reverse:
            return init + Affine(step * (scan.length - 1), (), {scan: -step})
        return init + Affine(0, (), {scan: step})

    def _counter(self, scan: Scan, carry: Carry, depth: int) -> tuple[Affine, int] | None:
        """Where a scalar carry starts, and what is added to it in each step."""
        if carry.param.shape:
            return None
        step = _added(carry.next, carry.param)
        init = self.affine(carry.init, depth) if step is not None else None
        if init is None or step is None:
            return None
        low, high = dtypes.limits(carry.param.dtype)
        last = init.range(())
        reach = step * scan.length
        fits = low <= last[0] + min(reach, 0) and last[1] + max(reach, 0) <= high
        return (init, step) if fits else None

    def _of_scan(self, scan: Scan, result: Value, depth: int) -> Affine | None:
        """A stack; or a counter after the loop."""
        stack = scan.stack_of(result)
        if stack is not None:
            row = self.affine(stack.value, depth)
            return stacked(row, scan) if row is not None else None
        carry = scan.carry_of(result)
        counted = self._counter(scan, carry, depth) if carry is not None else None
        return counted[0] + Affine(counted[1] * scan.length) if counted is not None else None

    def _find_component(self, value: Value, number: int, depth: int) -> Affine | None:
        whole = self.affine(value, depth)
        if whole is not None:
            *rest, last = whole.strides
            return Affine(whole.offset + last * number, tuple(rest), whole.steps)
        op = value.op
        if isinstance(op, Scan):
            stack = op.stack_of(value)
            row = (
                self.component(stack.value, number, depth) if stack and stack.value.shape else None
            )
            return stacked(row, op) if row is not None else None
        if op is None:
            return self._component_of_row(value, number, depth)
        last_axis = len(value.shape) - 1
        if op.name == "concatenate" and dimension_of(op) == last_axis:
            for piece in op.operands:
                if number < piece.shape[-1]:
                    return self.component(piece, number, depth)
                number -= piece.shape[-1]
        if op.name == "stack" and dimension_of(op) == last_axis:
            return self.affine(op.operands[number], depth)
        if op.name == "convert_element_type":
            return self.component(op.operands[0], number, depth)
        if op.name == "slice":
            return self._component_of_slice(op, number, depth)
        in_order = op.name == "reshape" and is_in_order(op)
        if in_order and op.operands[0].shape[-1:] == value.shape[-1:]:
            source = self.component(op.operands[0], number, depth)
            shapes = op.operands[0].shape[:-1], value.shape[:-1]
            return reshaped(source, *shapes) if source is not None else None
        return None

    def _component_of_slice(self, op: Op, number: int, depth: int) -> Affine | None:
        (*starts, first), (*strides, every) = starts_of(op), strides_of(op)
        source = self.component(op.operands[0], first + number * every, depth)
        if source is None:
            return None
        offset = sum(a * s for a, s in zip(starts, source.strides, strict=True))
        moves = tuple(s * k for s, k in zip(source.strides, strides, strict=True))
        return Affine(source.offset + offset, moves, source.steps)

    def _component_of_row(self, row: Value, number: int, depth: int) -> Affine | None:
        owner = row.region.owner if row.region is not None else None
        stream = owner.stream_of(row) if isinstance(owner, Scan) else None
        if stream is None or not isinstance(owner, Scan):
            return None
        nest = self.nest.get(owner, {owner: 1})
        table = stream.operand if len(nest) == 1 else _table(stream.operand, nest)
        rows = self.component(table, number, depth) if table is not None else None
        return self._shifted(_in_steps(rows, nest), owner) if rows is not None else None

    def _shifted(self, found: Affine, scan: Scan) -> Affine:
        """A function of a step, in the one that follows it if that is asked for."""
        if scan is not self.after_first:
            return found
        return found + Affine(found.steps.get(scan, 0), (0,) * len(found.strides))

    # ------------------------------------------------------------ bounds

    def bounds(self, value: Value, depth: int) -> Interval | None:
        """From the affine form where there is one, else op by op; of a bool, 0 and 1."""
        if value not in self.ranges:
            if depth > limits.WAY_TO_AN_INDEX or not (_is_integer(value) or value.dtype == bool):
                return None
            known = self.affine(value, depth)
            if known is not None:
                self.ranges[value] = known.range(value.shape)
            else:
                low, high = (0, 1) if value.dtype == bool else dtypes.limits(value.dtype)
                found = self._bounds_of(value, depth + 1)
                fits = found is not None and low <= found[0] and found[1] <= high
                self.ranges[value] = found if fits else (low, high)
        return self.ranges[value]

    def _bounds_of(self, value: Value, depth: int) -> Interval | None:
        if isinstance(value, Constant):
            numbers = captured_indices(value)
            return _extremes(numbers) if numbers is not None else _uniform_bounds(value)
        op = value.op
        if op is None or isinstance(op, Scan):
            source = other_side(value)
            return self.bounds(source, depth) if source is not None else None
        if op.name in SAME_ELEMENTS:
            return self.bounds(op.operands[0], depth)
        if op.name == "select_n":
            return hull(self.bounds(v, depth) for v in self.cases(op, depth))
        if op.name in _PLACES:
            return 0, op.operands[0].shape[axes_of(op)[0]] - 1
        if op.name == "top_k" and value.position == 1:
            return 0, max(op.operands[0].shape) - 1
        if op.name == "sort":
            return self.bounds(op.operands[value.position], depth)
        if op.name in JOINING:
            return hull(self.bounds(v, depth) for v in op.operands)
        of_integers = all(map(_is_integer, op.operands))
        if of_integers and op.name in COMPARED_WITH_ZERO:
            outcome = self._compare(op, depth)
            return (int(outcome), int(outcome)) if outcome is not None else None
        if self._asks_to_round_down(op, depth):
            return 0, 0
        rule = (INTERVALS if of_integers else LOGIC).get(op.name)
        if rule is None:
            return None
        operands = [self.bounds(v, depth) for v in op.operands]
        known = [b for b in operands if b is not None]
        return rule(*known) if len(known) == len(operands) else None

    # ------------------------------------------------------------ comparisons

    def _compare(self, op: Op, depth: int) -> bool | None:
        left, right = (self.affine(v, depth) for v in op.operands)
        if left is not None and right is not None:
            return COMPARED_WITH_ZERO[op.name](*(left - right).range(op.result.shape))
        a, b = (self.bounds(v, depth) for v in op.operands)
        if a is None or b is None:
            return None
        return COMPARED_WITH_ZERO[op.name](a[0] - b[1], a[1] - b[0])

    def _asks_to_round_down(self, op: Op, depth: int) -> bool:
        """Whether an op asks if a quotient of numbers without a sign is below what `div` makes of
        it: ``sign(x) != sign(n) and x % n != 0``, in jnp's ``x // n``.
        """
        asked = [v.op for v in map(original, op.operands)]
        tests = [test for test in asked if test is not None and test.name == "ne"]
        signs = next((t.operands[0].op for t in tests if _is_made_by(t.operands[0], "sign")), None)
        rest = next((t.operands[0].op for t in tests if _is_made_by(t.operands[0], "rem")), None)
        if op.name != "and" or signs is None or rest is None:
            return False
        of_divisor = next(t.operands[1] for t in tests if t.operands[0].op is signs)
        of_rest = next(t.operands[1] for t in tests if t.operands[0].op is rest)
        (x,), (divided, n) = signs.operands, rest.operands
        low, least = self.bounds(x, depth), self.bounds(n, depth)
        is_positive = self.bounds(of_divisor, depth) == (1, 1)
        known = low is not None and low[0] >= 0 and least is not None and least[0] > 0
        return divided is x and is_positive and known and self.bounds(of_rest, depth) == (0, 0)

    def cases(self, select: Op, depth: int) -> Sequence[Value]:
        """Those cases of a `select_n` that are ever taken, so far as is known."""
        which, *cases = select.operands
        low, high = self.bounds(which, depth) or (0, len(cases))
        return cases[max(low, 0) : high + 1] or cases


def decide(predicate: Value) -> bool | None:
    """Whether a predicate on integers is known to be true, or false, in all elements and steps."""
    found = _Search(predicate).bounds(predicate, 0) if predicate.dtype == bool else None
    return bool(found[0]) if found is not None and found[0] == found[1] else None


def decide_after_first_step(predicate: Value, scan: Scan) -> bool | None:
    """Whether a predicate is known in all steps but the first, of a loop that runs forward."""
    search = _Search(predicate, {}, after_first=scan)
    found = search.bounds(predicate, 0) if predicate.dtype == bool else None
    return bool(found[0]) if found is not None and found[0] == found[1] else None


def _added(end: Value, start: Value) -> int | None:
    """The constant `k` of ``end = start + k``."""
    total = 0
    for _ in range(limits.WAY_TO_AN_INDEX):
        if end is start:
            return total
        op = end.op
        if op is None or not _is_integer(end):
            return None
        inner = op.carry_of(end) if isinstance(op, Scan) else None
        if inner is not None and isinstance(op, Scan):
            k = _added(inner.next, inner.param)
            if k is None:
                return None
            end, total = inner.init, total + k * op.length
        elif op.name == "convert_element_type" and op.operands[0].dtype == end.dtype:
            end = op.operands[0]
        elif op.name == "add" and (k := uniform(op.operands[1])) is not None:
            end, total = op.operands[0], total + int(k)
        elif op.name == "add" and (k := uniform(op.operands[0])) is not None:
            end, total = op.operands[1], total + int(k)
        elif op.name == "sub" and (k := uniform(op.operands[1])) is not None:
            end, total = op.operands[0], total - int(k)
        else:
            return None
    return None


def _table(rows: Value, nest: StepsOfNest) -> Value | None:
    """The array with an axis for each loop of a nest that rows for all its steps are made of."""
    made, lengths = rows.op, tuple(loop.length for loop in nest)
    if made is None or made.name != "reshape" or not is_in_order(made):
        return None
    (table,) = made.operands
    return table if table.shape == (*lengths, *rows.shape[1:]) else None


def _in_steps(table: Affine, nest: StepsOfNest) -> Affine:
    """The elements that a step of a nest reads of a table, whose first axes are the steps of its
    loops.
    """
    strides = dict(zip(nest, table.strides, strict=False))
    return Affine(table.offset, table.strides[len(nest) :], {**table.steps, **strides})


def _progression(array: Constant) -> Affine | None:
    """A captured array in which each axis counts by a step of its own: ``np.arange(8)``."""
    numbers = captured_indices(array)
    if numbers is None or not all(map(_is_index, _extremes(numbers))):
        return None
    first, axes = int(numbers.flat[0]), range(numbers.ndim)
    along = [numbers[tuple(slice(None) if d == axis else 0 for d in axes)] for axis in axes]
    strides = tuple(int(line[1]) - first if len(line) > 1 else 0 for line in along)
    counted = sum(np.indices(numbers.shape)[d] * strides[d] for d in axes) + first
    return Affine(first, strides) if np.array_equal(counted, numbers) else None


def _extremes(numbers: np.ndarray[Any, Any]) -> Interval:
    return span((numbers.min(), numbers.max()))


def _is_index(number: int) -> bool:
    """Whether an index could be a number, so that NumPy may compute with differences of such."""
    return dtypes.holds(np.int32, number) or dtypes.holds(np.uint32, number)


def _is_made_by(value: Value, name: str) -> bool:
    return value.op is not None and value.op.name == name


def _uniform_bounds(value: Value) -> Interval | None:
    number = uniform(value)
    return (int(number), int(number)) if number is not None else None
