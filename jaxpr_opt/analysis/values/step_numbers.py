"""Integers and truth values of a loop's steps that are known before the program runs.

`numbers_at(v, scan)` is the number that the scalar `v` of a step is in each step: computed from the
number of the step, from captured arrays, and from counters that start again. So it is known in
which steps ``t % 10 == 0`` is true, or which layers of a scan ``kinds[layer] == 1`` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxpr_opt.analysis.values.constants import captured, captured_indices, uniform
from jaxpr_opt.analysis.values.induction import affine
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import broadcast_dimensions_of, is_in_order
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import backward_slice, stacked_row
from jaxpr_opt.ir.facts import memory
from jaxpr_opt.ir.graph import Carry, Cond, Constant, Op, Scan, Value, is_sized

Numbers = np.ndarray[Any, Any]

ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "convert_element_type": lambda x: x,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "sub": np.subtract,
    "xor": np.bitwise_xor,
}
"""Ops of integers and truth values that NumPy computes as XLA does."""


def numbers_at(value: Value, scan: Scan) -> Numbers | None:
    """The numbers that a scalar integer or truth value of a step has, one for each row of the
    loop's streams; None if they are not known.
    """
    if not scan.has_length or not 0 < scan.length <= limits.STEPS_KNOWN:
        return None
    return _Search(scan).rows(value, 0)


def counted_alike(scan: Scan, other: Scan, number: Value, its: Value) -> bool:
    """Whether a loop has a number in each step that another one has in the step of the same row."""
    counted, its_counted = numbers_at(number, scan), numbers_at(its, other)
    if counted is None or its_counted is None or number.dtype != its.dtype:
        return False
    return np.array_equal(counted, its_counted)


FoundNumbers = dict[Value, Numbers | None]
"""What has been found out: what is made of two of the same values would be looked for twice."""


@dataclass(frozen=True)
class Row:
    """A step of a loop: that which has this row of its streams."""

    scan: Scan
    number: int

    def numbers(self, value: Value) -> Numbers | None:
        """An integer array of the step that is affine in its places and the number of the row; or
        what another loop has stacked for that row.
        """
        stacked = stacked_row(value) if value.region is self.scan.body else None
        if stacked is not None:
            row, maker = stacked
            return known_numbers(row, Row(maker, self.number))
        is_made = dtypes.is_integer(value.dtype) and self.scan.body.defines(value)
        found = affine(value) if is_made else None
        if found is None or not {*found.steps} <= {self.scan}:
            return None
        places = np.indices(value.shape).reshape(len(value.shape), value.size)
        start = found.offset + self.number * found.steps.get(self.scan, 0)
        made: Numbers = start + np.array(found.strides, np.int64) @ places
        return made.astype(value.dtype)


def known_numbers(value: Value, row: Row | None = None) -> Numbers | None:
    """The integers or truth values of an array, in row-major order: a captured one, of a step, or
    computed from such; None if they are not known.
    """
    levels = limits.WAY_TO_AN_INDEX if row is None else limits.LEVELS_OF_A_PREDICATE
    return _known(value, limits.WAY_TO_AN_INDEX - levels, {}, row)


def _known(value: Value, depth: int, known: FoundNumbers, row: Row | None) -> Numbers | None:
    if value not in known:
        known[value] = _of_array(value, depth + 1, known, row)
    return known[value]


def _of_array(value: Value, depth: int, known: FoundNumbers, row: Row | None) -> Numbers | None:
    if not is_sized(value.shape) or value.size > limits.STEPS_KNOWN:
        return None
    number = uniform(value)
    if number is not None:
        return np.full(value.size, number, value.dtype)
    if isinstance(value, Constant):
        found = captured_indices(value) if dtypes.is_integral(value.dtype) else None
        return found.reshape(-1) if found is not None else None
    if row is not None and (made := row.numbers(value)) is not None:
        return made
    op = value.op
    if op is None or depth > limits.WAY_TO_AN_INDEX:
        return None
    if op.name == "broadcast_in_dim":
        source = _known(op.operands[0], depth, known, row)
        return _spread(op, source) if source is not None else None
    if op.name == "reshape":
        return _known(op.operands[0], depth, known, row) if is_in_order(op) else None
    return computed(op, [_as_many(v, value.size, depth, known, row) for v in op.operands])


def _spread(broadcast: Op, source: Numbers) -> Numbers:
    (value,), shape = broadcast.operands, [1] * len(broadcast.result.shape)
    for axis, n in zip(broadcast_dimensions_of(broadcast), value.shape, strict=True):
        shape[axis] = n
    return np.broadcast_to(source.reshape(shape), broadcast.result.shape).reshape(-1)


def _as_many(
    value: Value, size: int, depth: int, known: FoundNumbers, row: Row | None
) -> Numbers | None:
    """So many numbers, if that is how many a value has, or if it repeats one."""
    found = _known(value, depth, known, row)
    if found is None or len(found) == size:
        return found
    return np.full(size, found[0]) if len(found) == 1 else None


def taken_at(cond: Cond, scan: Scan) -> Numbers | None:
    """The branch of a cond of a step that each step takes; None if it is not known."""
    found = numbers_at(cond.selector, scan)
    if found is None or (found < 0).any() or (found >= len(cond.branches)).any():
        return None
    return found


class _Search:
    """One loop's numbers; what is found stays known until the program changes."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self.known: dict[Value, Numbers | None] = memory(scan, (_Search, scan))

    def rows(self, value: Value, depth: int) -> Numbers | None:
        """Of a scalar of a step, or of an array outside that has a number for each step."""
        if value not in self.known:
            self.known[value] = None  # while it is looked for
            self.known[value] = self._find(value, depth + 1)
        return self.known[value]

    def _find(self, value: Value, depth: int) -> Numbers | None:
        within = self.scan.body.defines(value)
        shape = () if within or not value.shape else (self.scan.length,)
        if value.shape != shape or not dtypes.is_integral(value.dtype):
            return None
        if depth > limits.WAY_TO_AN_INDEX:
            return None
        number = uniform(value)
        if number is not None:
            return np.full(self.scan.length, number, value.dtype)
        found = self._counted(value)
        if found is not None:
            return found
        op = value.op
        if isinstance(op, Scan):
            stack = op.stack_of(value)
            return _Search(op).rows(stack.value, depth) if stack is not None else None
        if op is not None:
            return computed(op, [self.rows(v, depth) for v in op.operands])
        if isinstance(value, Constant):
            return captured(value)
        return self._of_param(value, depth)

    def _counted(self, value: Value) -> Numbers | None:
        """Numbers that are affine in the loop's step, and change with no other loop."""
        found = affine(value) if dtypes.is_integer(value.dtype) else None
        if found is None or not found.steps.keys() <= {self.scan}:
            return None
        factor = found.strides[0] if value.shape else found.steps.get(self.scan, 0)
        factor, offset = (dtypes.wrapped(value.dtype, n) for n in (factor, found.offset))
        rows: Numbers = np.arange(self.scan.length).astype(value.dtype) * factor + offset
        return rows

    def _of_param(self, value: Value, depth: int) -> Numbers | None:
        stream = self.scan.stream_of(value)
        if stream is not None:
            return self.rows(stream.operand, depth)
        carry = self.scan.carry_of(value)
        return self._repeated(carry) if carry is not None else None

    def _repeated(self, carry: Carry) -> Numbers | None:
        """A carry that a step computes from itself alone, and which comes round."""
        number, param = uniform(carry.init), carry.param
        if number is None:
            return None
        ops = backward_slice([carry.next], lambda v: v is param)
        met: dict[Any, int] = {}
        while number not in met:
            if len(met) == limits.STATES_OF_A_COUNTER:
                return None
            met[number] = len(met)
            known = {param: np.full(1, number, param.dtype)}
            for op in ops:
                numbers = [_number(v, known) for v in op.operands]
                made = computed(op, numbers) if len(op.results) == 1 else None
                if made is None:
                    return None
                known[op.result] = made
            after = _number(carry.next, known)
            if after is None:
                return None
            number = after[0]
        steps, first = np.arange(self.scan.length), met[number]
        around = first + (steps - first) % (len(met) - first)
        rows = np.array(list(met), param.dtype)[np.where(steps < first, steps, around)]
        return rows[::-1] if self.scan.reverse else rows


def _number(value: Value, known: Mapping[Value, Numbers]) -> Numbers | None:
    if value in known:
        return known[value]
    number = uniform(value) if not value.shape else None
    return np.full(1, number, value.dtype) if number is not None else None


def computed(op: Op, numbers: list[Numbers | None]) -> Numbers | None:
    """The result of an op, element by element, of known integers or truth values."""
    known = [each for each in numbers if each is not None]
    if len(known) < len(numbers) or len(op.results) != 1 or op.effects:
        return None
    if not all(dtypes.is_integral(v.dtype) for v in (*op.operands, op.result)):
        return None
    made: Any = None
    with np.errstate(over="ignore"):
        if op.name in ARITHMETIC:
            made = ARITHMETIC[op.name](*known)
        elif op.name == "select_n":
            made = _chosen(*known)
        elif op.name in ("rem", "div"):
            made = _divided(op.name, *known)
    return np.asarray(made).astype(op.result.dtype) if made is not None else None


def _chosen(which: Numbers, *cases: Numbers) -> Numbers | None:
    number = which.astype(np.int64)
    if (number < 0).any() or (number >= len(cases)).any():
        return None
    chosen: Numbers = np.stack(cases)[number, np.arange(len(number))]
    return chosen


def _divided(name: str, x: Numbers, n: Numbers) -> Numbers | None:
    """Rounded towards zero; nothing where XLA would divide by zero, or a quotient wrap around."""
    least = dtypes.limits(x.dtype)[0]
    if (n == 0).any() or (least < 0 and (x == least).any()):
        return None
    rest: Numbers = np.fmod(x, n)
    quotient: Numbers = (x - rest) // n
    return rest if name == "rem" else quotient
