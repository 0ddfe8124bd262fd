"""Windows of reshaped arrays: which axes are joined or split, and where a window is then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from math import prod
from typing import Any

from jax import lax


def reshaped_window(
    shape: Sequence[int], window: Sequence[int], new: Sequence[int]
) -> tuple[list[int], Callable[[Sequence[Any]], list[Any]]] | None:
    """The shape of a window in an array that is reshaped, and its starts by those that it had; None
    if it is no window there.
    """
    pairs = list(groups(shape, new))
    sizes = [
        _sizes([shape[i] for i in old], [window[i] for i in old], [new[j] for j in axes])
        for old, axes in pairs
    ]

    def starts(at: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        for old, axes in pairs:
            first = _first_of(
                [shape[i] for i in old], [window[i] for i in old], [at[i] for i in old]
            )
            digits: list[Any] = []
            for axis in reversed(axes[1:] if first is not None else ()):
                size = first.dtype.type(new[axis])
                digits.insert(0, lax.rem(first, size))
                first = lax.div(first, size)
            found += [0] * len(axes) if first is None else [first, *digits]
        return found

    # Condition 2 of map-before-writing.
    if any(each is None for each in sizes):
        return None
    return [size for each in sizes for size in each or ()], starts


def _sizes(shape: Sequence[int], window: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """The sizes of a window along the axes that axes become; None if it is no window."""
    parts = [i for i, size in enumerate(window) if size != shape[i]]
    if not parts:
        return [*new]
    inner, run = prod(shape[parts[-1] + 1 :]), window[parts[-1]]
    # Condition 2 of map-before-writing.
    if prod(window) != inner * run:
        return None
    strides = [prod(new[j + 1 :]) for j in range(len(new))]
    if inner in strides and (run == 1 or strides.index(inner) == 0):
        return [
            size if n < inner else run if n == inner else 1
            for size, n in zip(new, strides, strict=True)
        ]
    # Condition 2 of map-before-writing.
    return [inner * run // strides[0], *new[1:]] if inner % strides[0] == 0 else None


def _first_of(shape: Sequence[int], window: Sequence[int], at: Sequence[Any]) -> Any:
    """The number of the first element of a window, counted over all axes; None if it is all."""
    terms, stride = [], 1
    for size, part, start in reversed([*zip(shape, window, at, strict=True)]):
        if part != size:
            terms.append(lax.mul(start, start.dtype.type(stride)))
        stride *= size
    return reduce(lax.add, terms) if terms else None


def groups(shape: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The axes that a reshape joins, and what it makes of them: the smallest groups."""
    sources, targets = [*range(len(shape))], [*range(len(new))]
    while sources or targets:
        old, axes = sources[:1], targets[:1]
        del sources[:1], targets[:1]
        while (have := prod(shape[i] for i in old)) != (want := prod(new[j] for j in axes)):
            (old if have < want else axes).append((sources if have < want else targets).pop(0))
        yield old, axes
