"""The geometry of a timeline: a program's instants as columns from left to right.

Each op that runs is a column; where there are more than fit, each column is the highest of several.
The steps that are left out of a long loop are a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from jaxpr_opt.insight.timeline import Loop, Tick, Timeline

COLUMNS = 720
"""Columns of a chart, at most."""
MAX_TICKS = 20_000
"""Instants that are looked at to draw it."""
MAX_STEPS = 32
"""Steps of a loop that are drawn."""
GAP = 0.015
"""Width of a gap, as a share of the chart's."""
SIZE = 1000
"""Width and height of the drawing, in its own units."""


class Column(NamedTuple):
    """What is drawn between two places of the x axis."""

    left: float
    right: float
    """As shares of the width."""
    tick: Tick


class Stretch(NamedTuple):
    """A part of the x axis that has a name."""

    left: float
    right: float
    loop: Loop | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Where things are; heights are bytes."""

    arguments: int
    columns: tuple[Column, ...]
    gaps: tuple[Stretch, ...]
    loops: tuple[Stretch, ...]
    """The outermost loops."""
    backward: tuple[Stretch, ...]
    """Where cotangents are computed."""
    peak: Column

    @property
    def top(self) -> int:
        """Bytes live at the peak."""
        return self.peak.tick.instant.live

    def areas(self, base: int) -> dict[str, str]:
        """The paths of what is live by kind, back to front, each from `base` bytes up."""
        kept = [self.arguments + column.tick.instant.residual for column in self.columns]
        used = [level - self._unused(it) for level, it in zip(kept, self.columns, strict=True)]
        levels: dict[str, list[float]] = {
            "temporary": [column.tick.instant.live for column in self.columns],
            "reserved": list(kept),
            "residual": used,
            "argument": [self.arguments] * len(self.columns),
        }
        below = [*list(levels.values())[1:], [base] * len(self.columns)]
        return {
            kind: self._area(level, base)
            for (kind, level), next_ in zip(levels.items(), below, strict=True)
            if level != next_
        }

    def _unused(self, column: Column) -> float:
        """Bytes of residuals not yet written, or read for the last time: rows of a loop's stacks.

        Steps that are left out of the chart are taken to be evenly spread over it.
        """
        for left, right, loop in self.loops:
            if left <= column.left < right and loop is not None:
                done = (column.left - left) / (right - left)
                return loop.fills * (1 - done) + loop.drains * done
        return 0

    def _area(self, levels: Sequence[float], base: int) -> str:
        """A path of steps, `SIZE` high at the peak; equal neighbours are one step."""
        range_ = max(self.top - base, 1)
        path, height = ["M0,0"], 0
        for column, level in zip(self.columns, levels, strict=True):
            now = round(SIZE * (level - base) / range_)
            if now != height:
                path.append(f"H{SIZE * column.left:.1f}V{now}".replace(".0V", "V"))
                height = now
        return "".join([*path, f"H{SIZE}V0Z"])


def chart(timeline: Timeline) -> Chart:
    """Lay a program out from left to right."""
    ticks = list(timeline.unrolled(MAX_TICKS, MAX_STEPS))
    gap = GAP * len(ticks)
    starts, gaps, at = [], [], 0.0
    for tick in ticks:
        if _outer_gap(tick):
            gaps.append((at, at + gap))
            at += gap
        starts.append(at)
        at += 1.0
    places = [(left / at, (left + 1) / at) for left in starts]
    columns = list(_columns(ticks, places))
    return Chart(
        arguments=timeline.arguments,
        columns=tuple(columns),
        gaps=tuple(Stretch(left / at, right / at) for left, right in gaps),
        loops=tuple(_loops(timeline, ticks, places)),
        backward=tuple(_backward(columns)),
        peak=max(columns, key=lambda column: column.tick.instant.live),
    )


def _outer_gap(tick: Tick) -> bool:
    """Whether steps of an outermost loop are left out; a gap in every step would be noise."""
    return tick.skipped and len(tick.steps) == 1


def _columns(ticks: list[Tick], places: list[tuple[float, float]]) -> Iterator[Column]:
    crowded = len(ticks) > COLUMNS
    numbered = enumerate(zip(ticks, places, strict=True))
    for _, group in groupby(numbered, lambda n: int(n[1][1][0] * COLUMNS) if crowded else n[0]):
        members = [member for _, member in group]
        highest, _ = max(members, key=lambda member: member[0].instant.live)
        yield Column(members[0][1][0], members[-1][1][1], highest)


def _loops(
    timeline: Timeline, ticks: list[Tick], places: list[tuple[float, float]]
) -> Iterator[Stretch]:
    """The outermost loops, from the op that makes room for their results to their last step."""
    loops = (span for span in timeline.spans if isinstance(span, Loop) and span.times != 0)
    pairs = zip(ticks, places, strict=True)
    at = 0.0
    for inside, group in groupby(pairs, lambda pair: bool(pair[0].steps)):
        *_, (left, right) = (place for _, place in group)
        if inside:
            yield Stretch(at, right, next(loops))
        at = left


def _backward(columns: Iterable[Column]) -> Iterator[Stretch]:
    """From the first column to the last of each run; a few others in between do not end it."""
    found: list[Stretch] = []
    for column in columns:
        if not column.tick.instant.backward:
            continue
        if found and column.left - found[-1].right < 2 * GAP:
            found[-1] = Stretch(found[-1].left, column.right)
        else:
            found.append(Stretch(column.left, column.right))
    return iter(found)
