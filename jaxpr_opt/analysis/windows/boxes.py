"""Windows at known places: where they start, and how large they are."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.ir.graph import Value


@dataclass(frozen=True, slots=True)
class Box:
    """A window of an array, the same in every step."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(start + size for start, size in zip(self.starts, self.sizes, strict=True))

    def contains(self, other: Box) -> bool:
        axes = zip(self.starts, self.ends, other.starts, other.ends, strict=True)
        return all(a <= c and d <= b for a, b, c, d in axes)

    def common(self, other: Box) -> Box | None:
        """The elements of both; None if there are none."""
        starts = tuple(map(max, self.starts, other.starts))
        ends = tuple(map(min, self.ends, other.ends))
        if not all(a < b for a, b in zip(starts, ends, strict=True)):
            return None
        return _between(starts, ends)

    def overlaps(self, other: Box) -> bool:
        """Whether an element is in both."""
        for a, n, b, m in zip(self.starts, self.sizes, other.starts, other.sizes, strict=True):
            if a + n <= b or b + m <= a or not (n and m):
                return False
        return True

    def around(self, other: Box) -> Box:
        """The smallest window with the elements of both."""
        return _between(
            tuple(map(min, self.starts, other.starts)), tuple(map(max, self.ends, other.ends))
        )

    def axis_apart(self, other: Box) -> int | None:
        """The only axis along which two windows differ; None if there are several, or none."""
        sides = zip(self.starts, self.sizes, other.starts, other.sizes, strict=True)
        axes = [axis for axis, (a, n, b, m) in enumerate(sides) if (a, n) != (b, m)]
        return axes[0] if len(axes) == 1 else None

    def divided(self, by: Box) -> list[Box] | None:
        """The parts of a window before, in and behind another window that it overlaps; None if they
        do not lie along one axis.
        """
        axis = self.axis_apart(by)
        if axis is None:
            return None
        cuts = [self.starts[axis], by.starts[axis], by.ends[axis], self.ends[axis]]
        inside = [min(max(cut, cuts[0]), cuts[3]) for cut in cuts]
        return [
            self.along(axis, start, end) for start, end in itertools.pairwise(inside) if start < end
        ]

    def along(self, axis: int, start: int, end: int) -> Box:
        """The same window, but from one place to another along an axis."""
        starts, sizes = list(self.starts), list(self.sizes)
        starts[axis], sizes[axis] = start, end - start
        return Box(tuple(starts), tuple(sizes))

    def with_axis(self, axis: int) -> Box:
        """With one more axis, of one element."""
        return Box(
            (*self.starts[:axis], 0, *self.starts[axis:]),
            (*self.sizes[:axis], 1, *self.sizes[axis:]),
        )

    def without_axis(self, axis: int) -> Box:
        """Without an axis."""
        return Box(
            self.starts[:axis] + self.starts[axis + 1 :], self.sizes[:axis] + self.sizes[axis + 1 :]
        )

    def moved(self, by: Iterable[int]) -> Box:
        """As large a window that starts so much later along each axis."""
        starts = tuple(a + b for a, b in zip(self.starts, by, strict=True))
        return Box(starts, self.sizes)

    def inside(self, other: Box) -> Box:
        """The same window, of an array that is only the other window."""
        return self.moved(-start for start in other.starts)


def whole(array: Value) -> Box:
    """All of an array."""
    return Box((0,) * len(array.shape), array.shape)


def box_of(found: Access | None) -> Box | None:
    """The window that an op touches; None if it is not known, or another in each step."""
    starts = [] if found is None else [each.start for each in found.window]
    if found is None or not all(start is not None and start.is_constant for start in starts):
        return None
    return Box(tuple(s.offset for s in starts if s is not None), found.sizes)


class Boxes:
    """Windows of which no two have an element in common: of those that would, the common part is a
    window of its own if they lie along one axis, else they are put together.

    They are kept in the order of their starts along one axis, so that those near a window are
    found without looking at all.
    """

    def __init__(self, axis: int = 0) -> None:
        self._axis = axis
        self._boxes: dict[Box, None] = {}
        self._sorted: list[Box] = []
        self._longest = 0

    def __iter__(self) -> Iterator[Box]:
        return iter(self._boxes)

    def __len__(self) -> int:
        return len(self._boxes)

    def add(self, boxes: Iterable[Box]) -> None:
        """Add windows."""
        pending = [*boxes]
        while pending:
            box = pending.pop()
            other = box if box in self._boxes else next(self._overlapping(box), None)
            if other is None:
                self._put(box)
            elif other != box:
                pieces = other.divided(box)
                if pieces is None:
                    self._replace(other, [])
                    pending.append(box.around(other))
                else:
                    self._replace(other, pieces)
                    pending += box.divided(other) or ()

    def divide(self, by: Box) -> None:
        """Divide what is in part in a window."""
        for box in list(self._overlapping(by)):
            pieces = box.divided(by)
            if pieces is not None and len(pieces) > 1:
                self._replace(box, pieces)

    def covering(self, box: Box) -> list[Box]:
        """Those that have elements of a window, in order."""
        if box in self._boxes:
            return [box]
        return sorted(self._overlapping(box), key=lambda b: b.starts)

    def _overlapping(self, box: Box) -> Iterator[Box]:
        """Those that have elements of a window."""
        start, end = self._side(box), self._side(box) + self._length(box)
        first = bisect_right(self._sorted, start - self._longest, key=self._side)
        last = bisect_left(self._sorted, end, key=self._side)
        return filter(box.overlaps, self._sorted[first:last])

    def _replace(self, box: Box, pieces: Iterable[Box]) -> None:
        del self._boxes[box]
        at = bisect_left(self._sorted, self._side(box), key=self._side)
        del self._sorted[self._sorted.index(box, at)]
        for piece in pieces:
            self._put(piece)

    def _put(self, box: Box) -> None:
        self._boxes[box] = None
        insort(self._sorted, box, key=self._side)
        self._longest = max(self._longest, self._length(box))

    def _side(self, box: Box) -> int:
        return box.starts[self._axis] if box.starts else 0

    def _length(self, box: Box) -> int:
        return box.sizes[self._axis] if box.sizes else 1


def _between(starts: tuple[int, ...], ends: tuple[int, ...]) -> Box:
    return Box(starts, tuple(end - start for start, end in zip(starts, ends, strict=True)))
