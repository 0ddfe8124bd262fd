"""Affine functions of array indices and loop steps, and what ops make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Protocol

from jaxpr_opt.analysis.values.intervals import Interval
from jaxpr_opt.bridge.parameters import (
    broadcast_dimensions_of,
    dimension_of,
    dimensions_of,
    is_in_order,
    permutation_of,
    slice_sizes_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.ir.graph import Op, Scan, Value


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


def spread(found: Affine, shape: tuple[int, ...]) -> Affine:
    """In its plainest form for this shape; where JAX takes a scalar for an array, of all axes."""
    pairs = zip_longest(found.strides, shape, fillvalue=0)
    strides = tuple(stride if n > 1 else 0 for stride, n in pairs)
    return found if strides == found.strides else replace(found, strides=strides)


def stacked(row: Affine, scan: Scan) -> Affine:
    """The function of the array that a scan stacks these rows to: its first axis is the steps."""
    steps = {s: k for s, k in row.steps.items() if s is not scan}
    return Affine(row.offset, (row.steps.get(scan, 0), *row.strides), steps)


class Search(Protocol):
    """What a rule may ask about the operands of its op."""

    def affine(self, value: Value, depth: int) -> Affine | None:
        """As a function of indices and steps."""

    def component(self, value: Value, number: int, depth: int) -> Affine | None:
        """`affine` of ``value[..., number]``."""

    def bounds(self, value: Value, depth: int) -> Interval | None:
        """The least and the greatest element."""

    def cases(self, select: Op, depth: int) -> Sequence[Value]:
        """Those cases of a `select_n` that are ever taken."""


Rule = Callable[[Search, Op, int], Affine | None]


def _iota(_: Search, op: Op, __: int) -> Affine:
    axis, rank = dimension_of(op), len(op.result.shape)
    return Affine(0, tuple(int(d == axis) for d in range(rank)))


def _same(search: Search, op: Op, depth: int) -> Affine | None:
    return search.affine(op.operands[0], depth)


def _sum(sign: int) -> Rule:
    def rule(search: Search, op: Op, depth: int) -> Affine | None:
        left, right = (search.affine(v, depth) for v in op.operands)
        return left + right * sign if left is not None and right is not None else None

    return rule


def _product(search: Search, op: Op, depth: int) -> Affine | None:
    left, right = (search.affine(v, depth) for v in op.operands)
    if left is None or right is None:
        return None
    if right.is_constant:
        return left * right.offset
    return right * left.offset if left.is_constant else None


def _negated(search: Search, op: Op, depth: int) -> Affine | None:
    source = search.affine(op.operands[0], depth)
    return source * -1 if source is not None else None


def _selected(search: Search, op: Op, depth: int) -> Affine | None:
    """The affine form that all cases which are ever taken share."""
    first, *others = (search.affine(v, depth) for v in search.cases(op, depth))
    return first if all(other == first for other in others) else None


def _extreme(pick: Callable[[int, int], bool]) -> Rule:
    """`max` or `min` of two affine forms one of which is always the winner."""

    def rule(search: Search, op: Op, depth: int) -> Affine | None:
        left, right = (search.affine(v, depth) for v in op.operands)
        if left is None or right is None:
            return None
        low, high = (left - right).range(op.result.shape)
        if pick(low, 0) and pick(high, 0):
            return left
        return right if pick(0, low) and pick(0, high) else None

    return rule


def _clamped(search: Search, op: Op, depth: int) -> Affine | None:
    """The operand of a clamp that never leaves the limits."""
    low, x, high = (search.bounds(v, depth) for v in op.operands)
    if low is None or x is None or high is None or x[0] < low[1] or x[1] > high[0]:
        return None
    return search.affine(op.operands[1], depth)


def _remainder(search: Search, op: Op, depth: int) -> Affine | None:
    """The remainder of a number that is less than the divisor, or is so but for multiples of it."""
    x, n = (search.bounds(v, depth) for v in op.operands)
    if x is not None and n is not None and x[0] >= 0 and x[1] < n[0]:
        return search.affine(op.operands[0], depth)
    found = _divided(search, op, depth)
    return found[1] if found is not None else None


def _quotient(search: Search, op: Op, depth: int) -> Affine | None:
    found = _divided(search, op, depth)
    return found[0] if found is not None else None


def _divided(search: Search, op: Op, depth: int) -> tuple[Affine, Affine] | None:
    """The quotient and the remainder of what is not negative: terms whose factors are multiples of
    the divisor, if the others never reach it.
    """
    x, n = (search.affine(v, depth) for v in op.operands)
    if x is None or n is None or not n.is_constant or n.offset < 1:
        return None
    divisor, shape = n.offset, op.result.shape
    x = spread(x, shape)
    rest = Affine(
        x.offset % divisor,
        tuple(k if k % divisor else 0 for k in x.strides),
        {scan: k for scan, k in x.steps.items() if k % divisor},
    )
    low, high = rest.range(shape)
    if x.range(shape)[0] < 0 or low < 0 or high >= divisor:
        return None
    whole = x - rest
    steps = {scan: k // divisor for scan, k in whole.steps.items()}
    strides = tuple(k // divisor for k in whole.strides)
    return Affine(whole.offset // divisor, strides, steps), rest


def _broadcast(search: Search, op: Op, depth: int) -> Affine | None:
    source = search.affine(op.operands[0], depth)
    if source is None:
        return None
    strides = [0] * len(op.result.shape)
    for d, stride in zip(broadcast_dimensions_of(op), source.strides, strict=True):
        strides[d] = stride
    return replace(source, strides=tuple(strides))


def _squeezed(search: Search, op: Op, depth: int) -> Affine | None:
    source = search.affine(op.operands[0], depth)
    return reshaped(source, op.operands[0].shape, op.result.shape) if source else None


def _reshape(search: Search, op: Op, depth: int) -> Affine | None:
    if not is_in_order(op):
        return None
    return _squeezed(search, op, depth)


def reshaped(source: Affine, before: tuple[int, ...], after: tuple[int, ...]) -> Affine | None:
    """The function after a reshape: axes may be split, and joined where their strides continue."""
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


def _joined(search: Search, op: Op, depth: int) -> Affine | None:
    """A list of one."""
    source = search.affine(op.operands[0], depth) if len(op.operands) == 1 else None
    if source is None or op.name == "concatenate":
        return source
    axis = dimension_of(op)
    return replace(source, strides=(*source.strides[:axis], 0, *source.strides[axis:]))


def _transposed(search: Search, op: Op, depth: int) -> Affine | None:
    source = search.affine(op.operands[0], depth)
    if source is None:
        return None
    return replace(source, strides=tuple(source.strides[d] for d in permutation_of(op)))


def _sliced(search: Search, op: Op, depth: int) -> Affine | None:
    (array,), starts = op.operands, starts_of(op)
    source = search.affine(array, depth)
    if source is None and op.result.shape[-1:] == (1,):
        part = search.component(array, starts[-1], depth)
        source = replace(part, strides=(*part.strides, 0)) if part is not None else None
    if source is None:
        return None
    every = strides_of(op)
    offset = sum(a * s for a, s in zip(starts, source.strides, strict=True))
    strides = tuple(s * k for s, k in zip(source.strides, every, strict=True))
    return Affine(source.offset + offset, strides, source.steps)


def _reversed(search: Search, op: Op, depth: int) -> Affine | None:
    source = search.affine(op.operands[0], depth)
    if source is None:
        return None
    turned = set(dimensions_of(op))
    last = sum(source.strides[d] * (op.result.shape[d] - 1) for d in turned)
    strides = tuple(-s if d in turned else s for d, s in enumerate(source.strides))
    return Affine(source.offset + last, strides, source.steps)


def _read(search: Search, op: Op, depth: int) -> Affine | None:
    """A window of an affine array, at affine indices that are in range."""
    array, *starts = op.operands
    source = search.affine(array, depth)
    if source is None:
        return None
    found = Affine(source.offset, source.strides, source.steps)
    for start, stride, n, size in zip(
        starts, source.strides, array.shape, slice_sizes_of(op), strict=True
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


RULES: dict[str, Rule] = {
    "add": _sum(1),
    "broadcast_in_dim": _broadcast,
    "clamp": _clamped,
    "concatenate": _joined,
    "convert_element_type": _same,
    "copy": _same,
    "div": _quotient,
    "dynamic_slice": _read,
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
