"""The rows of a carried array, along one axis, that all accesses of a loop are in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from jaxpr_opt.analysis.carried.buffers import Buffer
from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Scan


@dataclass(frozen=True, slots=True, eq=False)
class RowRange:
    """Rows `start` to ``start + size`` along `axis`."""

    axis: int
    start: Affine
    size: int

    @property
    def held(self) -> range:
        """Those that a step after the last would find where they are."""
        turns = [(0 if s.reverse else s.length - 1, k) for s, k in self.start.steps.items()]
        last = self.start.offset + sum(step * k for step, k in turns)
        onward = sum(-k if s.reverse else k for s, k in self.start.steps.items())
        return range(last + max(onward, 0), last + min(onward, 0) + self.size)


@dataclass(frozen=True, slots=True, eq=False)
class Touched:
    """The rows of a carried array that a loop touches, in blocks that do not overlap."""

    buffer: Buffer
    blocks: tuple[RowRange, ...]

    @property
    def axis(self) -> int:
        return self.blocks[0].axis

    @property
    def size(self) -> int:
        """How many rows are touched."""
        return sum(rows.size for rows in self.blocks)

    @property
    def is_of_few_rows(self) -> bool:
        """Whether the array has few rows in all."""
        return self.buffer.carry.param.shape[self.axis] <= limits.ROWS_CARRIED

    def shape(self, size: int) -> tuple[int, ...]:
        """Of so many rows."""
        array = self.buffer.carry.param.shape
        return (*array[: self.axis], size, *array[self.axis + 1 :])


def moving_rows(scan: Scan, found: Buffer) -> tuple[RowRange, ...]:
    """The rows that all accesses are in, along the first axis that has few; rather along one that
    the loop itself does not move along.
    """
    if not isinstance(scan.parent, Scan):
        return ()
    blocks = [
        (rows, moves)
        for axis, n in enumerate(found.carry.param.shape)
        for rows, moves in _moving_along(axis, scan, found)
        if not cost_model().is_most(rows.size, n)
    ]
    return tuple(rows for rows, _ in sorted(blocks, key=lambda block: block[1])[:1])


def _moving_along(axis: int, scan: Scan, found: Buffer) -> Iterator[tuple[RowRange, bool]]:
    """The rows that all accesses are in, which move with loops further out; and whether the loop
    moves within them.
    """
    starts = [access.window[axis].start for access in found.accesses]
    known = [start for start in starts if start is not None]
    # Condition 2 of narrow-carried-arrays.
    if len(known) < len(starts):
        return
    parts = [_divided(start, scan) for start in known]
    outer = parts[0][0]
    # Condition 2 of narrow-carried-arrays.
    if not outer.steps or any(part.steps != outer.steps for part, _ in parts):
        return
    spans = [inner.range(()) for _, inner in parts]
    sizes = [access.window[axis].size for access in found.accesses]
    low = min(least for least, _ in spans)
    high = max(most + size for (_, most), size in zip(spans, sizes, strict=True))
    moves = any(inner.steps for _, inner in parts)
    yield RowRange(axis, replace(outer, offset=low), high - low), moves


def _divided(start: Affine, scan: Scan) -> tuple[Affine, Affine]:
    """The steps of loops further out, and the rest."""
    within = {s: k for s, k in start.steps.items() if s is scan or scan.body.contains(s.region)}
    inner = Affine(start.offset, (), within)
    return start - inner, inner


def standing_blocks(found: Buffer) -> tuple[RowRange, ...]:
    """Blocks of rows at constants that all accesses are in, along the first axis that has several,
    or few rows in one; rather a long one, and a short one only if nothing moves along others, as
    `stack-carried-updates` else takes its rows apart.
    """
    shape = found.carry.param.shape
    short = [axis for axis, n in enumerate(shape) if n <= limits.ROWS_CARRIED]
    long = [axis for axis in range(len(shape)) if axis not in short]
    for axis in long if _moves(found) else [*long, *short]:
        blocks = _standing_along(axis, found)
        if len(blocks) > 1 or (blocks and not cost_model().is_most(len(blocks[0]), shape[axis])):
            return tuple(RowRange(axis, Affine(block.start), len(block)) for block in blocks)
    return ()


def _standing_along(axis: int, found: Buffer) -> list[range]:
    extents = [access.window[axis] for access in found.accesses]
    starts = [e.start.offset for e in extents if e.start is not None and e.start.is_constant]
    # Condition 2 of narrow-carried-arrays.
    if len(starts) < len(extents):
        return []
    return _joined([range(at, at + e.size) for at, e in zip(starts, extents, strict=True)])


def _moves(found: Buffer) -> bool:
    """Whether a window is known to be elsewhere in each step."""
    starts = [extent.start for access in found.accesses for extent in access.window]
    return any(start is not None and not start.is_constant for start in starts)


def _joined(spans: Sequence[range]) -> list[range]:
    """The spans in order, those that overlap as one."""
    # Condition 2 of narrow-carried-arrays.
    joined: list[range] = []
    for span in sorted(spans, key=lambda span: span.start):
        if joined and span.start < joined[-1].stop:
            joined[-1] = range(joined[-1].start, max(joined[-1].stop, span.stop))
        else:
            joined.append(span)
    return joined
