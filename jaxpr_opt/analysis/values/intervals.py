"""Interval arithmetic on integers; for a bool, 0 is false and 1 is true."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jaxpr_opt.ir.traits import VIEWING

Interval = tuple[int, int]
"""The least and the greatest value."""

JOINING = frozenset({"concatenate", "stack"})
"""Ops whose result has elements of all operands."""

SAME_ELEMENTS = VIEWING | {"convert_element_type", "dynamic_slice"}

INTERVALS: dict[str, Callable[..., Interval | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "and": lambda a, b: (
        (0, min(x[1] for x in (a, b) if x[0] >= 0)) if max(a[0], b[0]) >= 0 else None
    ),
    "clamp": lambda a, x, b: (min(max(x[0], a[0]), b[0]), min(max(x[1], a[1]), b[1])),
    "div": lambda a, n: (
        span(x // y if x >= 0 else -(-x // y) for x in a for y in n) if n[0] > 0 else None
    ),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "mul": lambda a, b: span(x * y for x in a for y in b),
    "neg": lambda a: (-a[1], -a[0]),
    "rem": lambda a, n: (
        (max(min(a[0], 0), 1 - n[1]), min(max(a[1], 0), n[1] - 1)) if n[0] > 0 else None
    ),
    "sign": lambda a: ((a[0] > 0) - (a[0] < 0), (a[1] > 0) - (a[1] < 0)),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
}


LOGIC: dict[str, Callable[..., Interval | None]] = {
    "and": lambda a, b: (a[0] & b[0], a[1] & b[1]),
    "eq": lambda a, b: _both(a, b, lambda x, y: x == y),
    "ne": lambda a, b: _both(a, b, lambda x, y: x != y),
    "not": lambda a: (1 - a[1], 1 - a[0]),
    "or": lambda a, b: (a[0] | b[0], a[1] | b[1]),
    "xor": lambda a, b: _both(a, b, lambda x, y: x != y),
}
"""The same of bools."""


def _both(a: Interval, b: Interval, test: Callable[[int, int], bool]) -> Interval:
    return span(int(test(x, y)) for x in a for y in b)


def span(numbers: Iterable[int]) -> Interval:
    """The interval of these numbers."""
    values = [int(n) for n in numbers]
    return min(values), max(values)


def hull(intervals: Iterable[Interval | None]) -> Interval | None:
    """The interval of what is in any of these; None if one is not known."""
    found = list(intervals)
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


COMPARED_WITH_ZERO: dict[str, Callable[[int, int], bool | None]] = {
    "lt": lambda low, high: True if high < 0 else False if low >= 0 else None,
    "le": lambda low, high: True if high <= 0 else False if low > 0 else None,
    "gt": lambda low, high: True if low > 0 else False if high <= 0 else None,
    "ge": lambda low, high: True if low >= 0 else False if high < 0 else None,
    "eq": lambda low, high: True if low == high == 0 else False if low > 0 or high < 0 else None,
    "ne": lambda low, high: False if low == high == 0 else True if low > 0 or high < 0 else None,
}
"""By the least and the greatest value of left minus right."""
