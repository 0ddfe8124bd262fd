"""Integers that are known as functions of the steps of the loops around them.

`affine(v)` finds ``offset + sum(stride * index) + sum(factor * step)``: over the indices of the
array `v`, and over the step (row number, whichever way it runs) of each scan around it.  It sees
through iotas, counters that a scan carries, arrays that one scan stacks and another reads back row
by row, conversions, slices and reshapes, and the normalisation of negative indices
(``select_n(i < 0, i, i + n)``), which a known range decides.

`bounds(v)` is the least and the greatest value an element may have.

Both compute with the integers the program computes with: what might wrap around is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from jaxpr_opt.analysis.constants import uniform
from jaxpr_opt.ir import Carry, Constant, Op, Scan, Value

MAX_DEPTH = 48
"""Ops looked through on the way from an index to its origin."""

Interval = tuple[int, int]
"""The least and the greatest value; of a bool 0 is false and 1 is true."""


@dataclass(frozen=True, slots=True)
class Affine:
    """``offset + sum(strides[d] * index[d]) + sum(steps[scan] * step of scan)``."""

    offset: int
    strides: tuple[int, ...] = ()
    steps: Mapping[Scan, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", {scan: k for scan, k in self.steps.items() if k})

    def __add__(self, other: Affine) -> Affine:
        steps = {
            s: self.steps.get(s, 0) + other.steps.get(s, 0) for s in (*self.steps, *other.steps)
        }
        # JAX takes scalars for arrays.
        pairs = zip_longest(self.strides, other.strides, fillvalue=0)
        return Affine(self.offset + other.offset, tuple(a + b for a, b in pairs), steps)

    def __mul__(self, factor: int) -> Affine:
        return Affine(
            self.offset * factor,
            tuple(s * factor for s in self.strides),
            {scan: k * factor for scan, k in self.steps.items()},
        )

    def __sub__(self, other: Affine) -> Affine:
        return self + other * -1

    @property
    def is_constant(self) -> bool:
        """Whether it is one number."""
        return not self.steps and not any(self.strides)

    def range(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The least and the greatest element of an array of this shape, over all steps."""
        extents = [*zip(self.strides, shape, strict=True)]
        extents += [(k, scan.length) for scan, k in self.steps.items()]
        reach = [stride * max(n - 1, 0) for stride, n in extents]
        low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
        return self.offset + low, self.offset + high


def affine(value: Value) -> Affine | None:
    """The integers of an array as a function of its indices and of the steps around it."""
    return _Search().affine(value, 0)


def component(vector: Value, number: int) -> Affine | None:
    """Element `number` of the last axis of an integer array, as a function of what is left.

    An index vector need not be affine as a whole: its components are joined by `concatenate`.
    """
    return _Search().component(vector, number, 0)


def bounds(value: Value) -> Interval | None:
    """The least and the greatest value that an element of an array of integers may have."""
    return _Search().bounds(value, 0)


def _is_integer(value: Value) -> bool:
    return isinstance(value.dtype, np.dtype) and value.dtype.kind in "iu"


def _representable(value: Value) -> tuple[int, int]:
    info = np.iinfo(value.dtype)
    return int(info.min), int(info.max)


class _Search:
    """One question: values in progress are unknown, so that a carry is not explained by itself."""

    def __init__(self) -> None:
        self.known: dict[tuple[Value, int | None], Affine | None] = {}
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
        if key not in self.known:
            if depth > MAX_DEPTH or not _is_integer(value):
                return None
            self.known[key] = None
            found = find(value, depth + 1)
            if found is not None:
                shape = value.shape if number is None else value.shape[:-1]
                found = _spread(found, shape)
                low, high = _representable(value)
                least, most = found.range(shape)
                found = found if low <= least and most <= high else None
            self.known[key] = found
        return self.known[key]

    def _find(self, value: Value, depth: int) -> Affine | None:
        number = uniform(value)
        if number is not None:
            return Affine(int(number), (0,) * len(value.shape))
        if isinstance(value, Constant):
            return None
        op = value.op
        if isinstance(op, Scan):
            return self._of_scan(op, value, depth)
        if op is not None:
            rule = _RULES.get(op.name)
            return rule(self, op, depth) if rule is not None else None
        owner = value.region.owner if value.region is not None else None
        return self._of_param(owner, value, depth) if isinstance(owner, Scan) else None

    def _of_param(self, scan: Scan, param: Value, depth: int) -> Affine | None:
        """A row of a stream, or a counter."""
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
        low, high = _representable(carry.param)
        last = init.range(())
        reach = step * scan.length
        fits = low <= last[0] + min(reach, 0) and last[1] + max(reach, 0) <= high
        return (init, step) if fits else None

    def _of_scan(self, scan: Scan, result: Value, depth: int) -> Affine | None:
        """A stack; or a counter after the loop."""
        stack = scan.stack_of(result)
        if stack is not None:
            row = self.affine(stack.value, depth)
            return _stacked(row, scan) if row is not None else None
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
            return _stacked(row, op) if row is not None else None
        if op is None:
            owner = value.region.owner if value.region is not None else None
            stream = owner.stream_of(value) if isinstance(owner, Scan) else None
            if stream is None or not isinstance(owner, Scan):
                return None
            rows = self.component(stream.operand, number, depth)
            if rows is None:
                return None
            lead, *rest = rows.strides
            return Affine(rows.offset, tuple(rest), {**rows.steps, owner: lead})
        last_axis = len(value.shape) - 1
        if op.name == "concatenate" and op.params["dimension"] == last_axis:
            for piece in op.operands:
                if number < piece.shape[-1]:
                    return self.component(piece, number, depth)
                number -= piece.shape[-1]
        if op.name == "stack" and op.params["axis"] == last_axis:
            return self.affine(op.operands[number], depth)
        if op.name == "convert_element_type":
            return self.component(op.operands[0], number, depth)
        in_order = op.name == "reshape" and op.params.get("dimensions") is None
        if in_order and op.operands[0].shape[-1:] == value.shape[-1:]:
            source = self.component(op.operands[0], number, depth)
            shapes = op.operands[0].shape[:-1], value.shape[:-1]
            return _reshaped(source, *shapes) if source is not None else None
        return None

    # ------------------------------------------------------------ bounds

    def bounds(self, value: Value, depth: int) -> Interval | None:
        """From the affine form where there is one, else op by op; of a bool, 0 and 1."""
        if value not in self.ranges:
            if depth > MAX_DEPTH or not (_is_integer(value) or value.dtype == bool):
                return None
            known = self.affine(value, depth)
            if known is not None:
                self.ranges[value] = known.range(value.shape)
            else:
                low, high = (0, 1) if value.dtype == bool else _representable(value)
                found = self._bounds_of(value, depth + 1)
                fits = found is not None and low <= found[0] and found[1] <= high
                self.ranges[value] = found if fits else (low, high)
        return self.ranges[value]

    def _bounds_of(self, value: Value, depth: int) -> Interval | None:
        if isinstance(value, Constant):
            small = isinstance(value.value, np.ndarray) and 0 < value.nbytes <= 4096
            return _span(value.value.flat) if small else _uniform_bounds(value)
        op = value.op
        if op is None or isinstance(op, Scan):
            source = _source(value)
            return self.bounds(source, depth) if source is not None else None
        if op.name in _SAME_ELEMENTS:
            return self.bounds(op.operands[0], depth)
        if op.name == "select_n":
            return _hull(self.bounds(v, depth) for v in self.cases(op, depth))
        of_integers = all(map(_is_integer, op.operands))
        if of_integers and op.name in _COMPARISONS:
            outcome = self._compare(op, depth)
            return (int(outcome), int(outcome)) if outcome is not None else None
        rule = (_INTERVALS if of_integers else _LOGIC).get(op.name)
        if rule is None:
            return None
        operands = [self.bounds(v, depth) for v in op.operands]
        known = [b for b in operands if b is not None]
        return rule(*known) if len(known) == len(operands) else None

    # ------------------------------------------------------------ comparisons

    def _compare(self, op: Op, depth: int) -> bool | None:
        left, right = (self.affine(v, depth) for v in op.operands)
        if left is not None and right is not None:
            return _COMPARISONS[op.name](*(left - right).range(op.result.shape))
        a, b = (self.bounds(v, depth) for v in op.operands)
        if a is None or b is None:
            return None
        return _COMPARISONS[op.name](a[0] - b[1], a[1] - b[0])

    def cases(self, select: Op, depth: int) -> Sequence[Value]:
        """Those cases of a `select_n` that are ever taken, so far as is known."""
        which, *cases = select.operands
        low, high = self.bounds(which, depth) or (0, len(cases))
        return cases[max(low, 0) : high + 1] or cases


def decide(predicate: Value) -> bool | None:
    """What a test of integers is known to be, at every element and in every step."""
    found = _Search().bounds(predicate, 0) if predicate.dtype == bool else None
    return bool(found[0]) if found is not None and found[0] == found[1] else None


def _spread(found: Affine, shape: tuple[int, ...]) -> Affine:
    """In its plainest form for this shape; where JAX takes a scalar for an array, of all axes."""
    pairs = zip_longest(found.strides, shape, fillvalue=0)
    return replace(found, strides=tuple(stride if n > 1 else 0 for stride, n in pairs))


def _stacked(row: Affine, scan: Scan) -> Affine:
    """The array whose rows those are: the steps of the scan are its first axis."""
    steps = {s: k for s, k in row.steps.items() if s is not scan}
    return Affine(row.offset, (row.steps.get(scan, 0), *row.strides), steps)


def _added(end: Value, start: Value) -> int | None:
    """The constant `k` of ``end = start + k``."""
    total = 0
    for _ in range(MAX_DEPTH):
        if end is start:
            return total
        op = end.op
        if op is None or not _is_integer(end):
            return None
        if op.name == "convert_element_type" and op.operands[0].dtype == end.dtype:
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


def _source(value: Value) -> Value | None:
    """The array whose elements these are: a stream's operand, or the value that is stacked."""
    op = value.op
    if isinstance(op, Scan):
        stack = op.stack_of(value)
        return stack.value if stack is not None else None
    owner = value.region.owner if value.region is not None else None
    stream = owner.stream_of(value) if isinstance(owner, Scan) else None
    return stream.operand if stream is not None else None


# ---------------------------------------------------------------- rules of the affine form

Rule = Callable[[_Search, Op, int], Affine | None]


def _iota(_: _Search, op: Op, __: int) -> Affine:
    axis, rank = op.params["dimension"], len(op.result.shape)
    return Affine(0, tuple(int(d == axis) for d in range(rank)))


def _same(search: _Search, op: Op, depth: int) -> Affine | None:
    return search.affine(op.operands[0], depth)


def _sum(sign: int) -> Rule:
    def rule(search: _Search, op: Op, depth: int) -> Affine | None:
        left, right = (search.affine(v, depth) for v in op.operands)
        return left + right * sign if left is not None and right is not None else None

    return rule


def _product(search: _Search, op: Op, depth: int) -> Affine | None:
    left, right = (search.affine(v, depth) for v in op.operands)
    if left is None or right is None:
        return None
    if right.is_constant:
        return left * right.offset
    return right * left.offset if left.is_constant else None


def _negated(search: _Search, op: Op, depth: int) -> Affine | None:
    source = search.affine(op.operands[0], depth)
    return source * -1 if source is not None else None


def _selected(search: _Search, op: Op, depth: int) -> Affine | None:
    """What all cases that are ever taken are alike."""
    first, *others = (search.affine(v, depth) for v in search.cases(op, depth))
    return first if all(other == first for other in others) else None


def _extreme(pick: Callable[[int, int], bool]) -> Rule:
    """`max` or `min` of two affine forms one of which is always the winner."""

    def rule(search: _Search, op: Op, depth: int) -> Affine | None:
        left, right = (search.affine(v, depth) for v in op.operands)
        if left is None or right is None:
            return None
        low, high = (left - right).range(op.result.shape)
        if pick(low, 0) and pick(high, 0):
            return left
        return right if pick(0, low) and pick(0, high) else None

    return rule


def _clamped(search: _Search, op: Op, depth: int) -> Affine | None:
    """What is within the limits anyway."""
    low, x, high = (search.bounds(v, depth) for v in op.operands)
    if low is None or x is None or high is None or x[0] < low[1] or x[1] > high[0]:
        return None
    return search.affine(op.operands[1], depth)


def _remainder(search: _Search, op: Op, depth: int) -> Affine | None:
    """What is less than the divisor anyway."""
    x, n = (search.bounds(v, depth) for v in op.operands)
    if x is None or n is None or x[0] < 0 or n[0] <= x[1]:
        return None
    return search.affine(op.operands[0], depth)


def _broadcast(search: _Search, op: Op, depth: int) -> Affine | None:
    source = search.affine(op.operands[0], depth)
    if source is None:
        return None
    strides = [0] * len(op.result.shape)
    for d, stride in zip(op.params["broadcast_dimensions"], source.strides, strict=True):
        strides[d] = stride
    return replace(source, strides=tuple(strides))


def _squeezed(search: _Search, op: Op, depth: int) -> Affine | None:
    source = search.affine(op.operands[0], depth)
    return _reshaped(source, op.operands[0].shape, op.result.shape) if source else None


def _reshape(search: _Search, op: Op, depth: int) -> Affine | None:
    if op.params.get("dimensions") is not None:
        return None
    return _squeezed(search, op, depth)


def _reshaped(source: Affine, before: tuple[int, ...], after: tuple[int, ...]) -> Affine | None:
    """Strides after a reshape: axes may be split, and joined where they continue one another."""
    if 0 in before:
        return None
    strides: list[int] = []
    axes = [(n, s) for n, s in zip(before, source.strides, strict=True) if n != 1]
    for size in reversed(after):
        if size == 1:
            strides.append(0)
            continue
        n, stride = axes.pop()
        strides.append(stride)
        while n < size:
            more, outer = axes.pop()
            if outer != stride * n:
                return None
            n *= more
        if n % size:
            return None
        if n > size:
            axes.append((n // size, stride * size))
    return replace(source, strides=tuple(reversed(strides)))


def _joined(search: _Search, op: Op, depth: int) -> Affine | None:
    """A list of one."""
    source = search.affine(op.operands[0], depth) if len(op.operands) == 1 else None
    if source is None or op.name == "concatenate":
        return source
    axis = op.params["axis"]
    return replace(source, strides=(*source.strides[:axis], 0, *source.strides[axis:]))


def _transposed(search: _Search, op: Op, depth: int) -> Affine | None:
    source = search.affine(op.operands[0], depth)
    if source is None:
        return None
    return replace(source, strides=tuple(source.strides[d] for d in op.params["permutation"]))


def _sliced(search: _Search, op: Op, depth: int) -> Affine | None:
    (array,), starts = op.operands, op.params["start_indices"]
    source = search.affine(array, depth)
    if source is None and op.result.shape[-1] == 1:
        part = search.component(array, starts[-1], depth)
        source = replace(part, strides=(*part.strides, 0)) if part is not None else None
    if source is None:
        return None
    every = op.params["strides"] or (1,) * len(starts)
    offset = sum(a * s for a, s in zip(starts, source.strides, strict=True))
    strides = tuple(s * k for s, k in zip(source.strides, every, strict=True))
    return Affine(source.offset + offset, strides, source.steps)


def _reversed(search: _Search, op: Op, depth: int) -> Affine | None:
    source = search.affine(op.operands[0], depth)
    if source is None:
        return None
    turned = set(op.params["dimensions"])
    last = sum(source.strides[d] * (op.result.shape[d] - 1) for d in turned)
    strides = tuple(-s if d in turned else s for d, s in enumerate(source.strides))
    return Affine(source.offset + last, strides, source.steps)


def _read(search: _Search, op: Op, depth: int) -> Affine | None:
    """A window of an affine array, at affine indices that are in range."""
    array, *starts = op.operands
    source = search.affine(array, depth)
    if source is None:
        return None
    found = Affine(source.offset, source.strides, source.steps)
    for start, stride, n, size in zip(
        starts, source.strides, array.shape, op.params["slice_sizes"], strict=True
    ):
        if stride == 0:
            continue
        at = search.affine(start, depth)
        if at is None:
            return None
        low, high = at.range(())
        if low < 0 or high > n - size:
            return None
        moved = at * stride
        steps = {s: found.steps.get(s, 0) + k for s, k in moved.steps.items()}
        found = Affine(found.offset + moved.offset, found.strides, {**found.steps, **steps})
    return found


_RULES: dict[str, Rule] = {
    "add": _sum(1),
    "broadcast_in_dim": _broadcast,
    "clamp": _clamped,
    "concatenate": _joined,
    "convert_element_type": _same,
    "copy": _same,
    "dynamic_slice": _read,
    "expand_dims": _squeezed,
    "iota": _iota,
    "max": _extreme(lambda a, b: a >= b),
    "min": _extreme(lambda a, b: a <= b),
    "mul": _product,
    "neg": _negated,
    "rem": _remainder,
    "reshape": _reshape,
    "rev": _reversed,
    "select_n": _selected,
    "slice": _sliced,
    "squeeze": _squeezed,
    "stack": _joined,
    "stop_gradient": _same,
    "sub": _sum(-1),
    "transpose": _transposed,
}

# ---------------------------------------------------------------- rules of intervals

_SAME_ELEMENTS = frozenset({
    "broadcast_in_dim", "convert_element_type", "copy", "dynamic_slice", "expand_dims", "reshape",
    "rev", "slice", "squeeze", "stop_gradient", "transpose",
})  # fmt: skip

_INTERVALS: dict[str, Callable[..., Interval | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "clamp": lambda a, x, b: (min(max(x[0], a[0]), b[0]), max(min(x[1], b[1]), a[0])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "mul": lambda a, b: _span(x * y for x in a for y in b),
    "neg": lambda a: (-a[1], -a[0]),
    "rem": lambda a, n: (
        (min(0, a[0], 1 - n[1]) if a[0] < 0 else 0, min(max(a[1], 0), n[1] - 1))
        if n[0] > 0
        else None
    ),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
}


_LOGIC: dict[str, Callable[..., Interval | None]] = {
    "and": lambda a, b: (a[0] & b[0], a[1] & b[1]),
    "eq": lambda a, b: _both(a, b, lambda x, y: x == y),
    "ne": lambda a, b: _both(a, b, lambda x, y: x != y),
    "not": lambda a: (1 - a[1], 1 - a[0]),
    "or": lambda a, b: (a[0] | b[0], a[1] | b[1]),
    "xor": lambda a, b: _both(a, b, lambda x, y: x != y),
}
"""The same of bools."""


def _both(a: Interval, b: Interval, test: Callable[[int, int], bool]) -> Interval:
    return _span(int(test(x, y)) for x in a for y in b)


def _span(numbers: Iterable[int]) -> Interval:
    values = [int(n) for n in numbers]
    return min(values), max(values)


def _hull(intervals: Iterable[Interval | None]) -> Interval | None:
    found = list(intervals)
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _uniform_bounds(value: Value) -> Interval | None:
    number = uniform(value)
    return (int(number), int(number)) if number is not None else None


_COMPARISONS: dict[str, Callable[[int, int], bool | None]] = {
    "lt": lambda low, high: True if high < 0 else False if low >= 0 else None,
    "le": lambda low, high: True if high <= 0 else False if low > 0 else None,
    "gt": lambda low, high: True if low > 0 else False if high <= 0 else None,
    "ge": lambda low, high: True if low >= 0 else False if high < 0 else None,
    "eq": lambda low, high: True if low == high == 0 else False if low > 0 or high < 0 else None,
    "ne": lambda low, high: False if low == high == 0 else True if low > 0 or high < 0 else None,
}
"""By the least and the greatest value of left minus right."""
