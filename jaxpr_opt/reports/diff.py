"""The difference of two graphs as one text: `-` only before, `+` only after, blank in both.

Ops are compared, not lines: names play no part, and `after` is written with the names of `before`
wherever a value is the same (`jaxpr_opt.reports.diff_align`).  Regions are compared inside, so that
a change deep in a loop is one line.  `jaxpr-opt diff` prints this, and tests quote it whole.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from jaxpr_opt.bridge.dtypes import type_text
from jaxpr_opt.frames import Frame
from jaxpr_opt.insight.summary import Summary, summarize
from jaxpr_opt.ir.graph import Constant, Graph, Op, Region, Value
from jaxpr_opt.ir.places import user_frame
from jaxpr_opt.ir.text import Names, constant_text, graph_opening, op_lines, opening, sections
from jaxpr_opt.ir.text_params import parameters
from jaxpr_opt.reports.diff_align import Alignment

Gutter = Literal["-", "+", " "]
STYLES: dict[Gutter, str] = {"-": "red", "+": "green", " ": ""}


class DiffLine(NamedTuple):
    """A line of the diff without its indentation."""

    gutter: Gutter
    depth: int
    text: str
    frame: Frame | None = None
    """Where in the user's source the op is from; None where JAX knows no place, and for ends."""
    reads_only: bool = False
    """Whether the op is as before, but for which values it reads."""
    stands_for: int = 0
    """Lines in place of which this one counts them; 0 for a line of a program."""

    def wrapped(self, width: int | None = None) -> list[str]:
        """With gutter and indentation, and broken between words where it is longer than `width`."""
        room = max(40, width - 2) if width is not None else sys.maxsize
        indent = "  " * self.depth
        parts = textwrap.wrap(
            self.text,
            room,
            initial_indent=indent,
            subsequent_indent=f"{indent}    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        return [f"{self.gutter} {part}".rstrip() for part in parts]


@dataclass(frozen=True, slots=True)
class GraphDiff:
    """The difference of two graphs, and what each costs; print it, with rich or without."""

    lines: tuple[DiffLine, ...]
    before: Summary
    after: Summary

    @property
    def changed(self) -> bool:
        return any(line.gutter != " " for line in self.lines)

    def to_text(self, width: int | None = None) -> str:
        """The diff; lines longer than `width` are continued on the next, further in."""
        return "\n".join(part for line in self.lines for part in line.wrapped(width))

    def __str__(self) -> str:
        return self.to_text()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            for part in line.wrapped(options.max_width):
                yield Text(part, STYLES[line.gutter], no_wrap=True, overflow="ignore")


def diff_graphs(before: Graph, after: Graph, in_place: bool = False) -> GraphDiff:
    """Compare two graphs op by op; neither is changed.

    `in_place`: an op that stands for another of the same type has its name, so that what reads it
    is no change.
    """
    lines = tuple(_Differ(before, after, in_place).lines())
    return GraphDiff(lines, summarize(before), summarize(after))


class _Differ:
    def __init__(self, before: Graph, after: Graph, in_place: bool) -> None:
        self.before, self.after = before, after
        alignment = Alignment(before, after, in_place)
        self.pairs = alignment.ops
        self.paired = set(alignment.ops.values())
        self.old = Names(before)
        given = {theirs: self.old[ours] for theirs, ours in alignment.values.items()}
        self.new = Names(after, given, avoid=self.old.all())

    def lines(self) -> Iterator[DiffLine]:
        yield from self.both(
            0, graph_opening(self.before, self.old), graph_opening(self.after, self.new)
        )
        yield from self.regions(self.before.body, self.after.body, 1)
        yield DiffLine(" ", 0, "}")

    def both(
        self, depth: int, old: str, new: str, ops: tuple[Op, Op] | None = None
    ) -> Iterator[DiffLine]:
        was, now = map(user_frame, ops) if ops is not None else (None, None)
        if old == new:
            yield DiffLine(" ", depth, old, was)
        else:
            reads_only = ops is not None and _computes_the_same(*ops)
            yield DiffLine("-", depth, old, was, reads_only)
            yield DiffLine("+", depth, new, now, reads_only)

    def regions(self, before: Region, after: Region, depth: int) -> Iterator[DiffLine]:
        """Paired ops are compared; those between two pairs are gone or new."""
        theirs = after.ops
        for op in before.ops:
            if op not in self.pairs:
                yield from self.whole("-", op, self.old, depth)
                continue
            for new in theirs:
                if new in self.paired:
                    break
                yield from self.whole("+", new, self.new, depth)
            yield from self.pair(op, self.pairs[op], depth)

    def pair(self, old: Op, new: Op, depth: int) -> Iterator[DiffLine]:
        yield from self.both(depth, opening(old, self.old), opening(new, self.new), (old, new))
        for (intro, ours), (_, theirs) in zip(sections(old), sections(new), strict=True):
            if intro:
                yield DiffLine(" ", depth, intro)
            yield from self.regions(ours, theirs, depth + 1)
        if old.regions:
            yield DiffLine(" ", depth, "}")

    def whole(self, gutter: Gutter, op: Op, names: Names, depth: int) -> Iterator[DiffLine]:
        for line in op_lines(op, names, depth):
            frame = None if line.op is None or line.text == "}" else user_frame(line.op)
            yield DiffLine(gutter, line.depth, line.text, frame)


def _computes_the_same(old: Op, new: Op) -> bool:
    """Whether two ops without regions differ in what they read only; ends of regions do."""
    if old.regions or new.regions:
        return False
    said = [
        (op.name, parameters(op), [*map(_type, op.results)], _constants(op)) for op in (old, new)
    ]
    return said[0] == said[1] or (old.is_terminator and new.is_terminator)


def _type(value: Value) -> str:
    return type_text(value.aval)


def _constants(op: Op) -> list[str | None]:
    """The operands that are constants, each at its position."""
    return [constant_text(each) if isinstance(each, Constant) else None for each in op.operands]
