"""A diff that fits a screen, however long the program is.

In this order, as far as it takes: less around each change; a change that is made in many places, as
in each layer of a model, once; not what only reads other values than before; and at the end what
passes changed at which lines, in place of what finds no room.
"""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from jaxpr_opt.frames import Frame
from jaxpr_opt.reports.diff import DiffLine, GraphDiff
from jaxpr_opt.reports.unified import Doers, counted, folded, rendered

HEIGHT = 60
"""Lines of a screen."""
SAME = 3
"""Words that two long lines have in common and that are shown all the same."""
NAME = re.compile(r"[A-Za-z_]\w*")
DEFINED = re.compile(r"([A-Za-z_]\w*):\w+\[")


@dataclass(frozen=True, slots=True)
class Screen:
    """A diff in at most `height` lines; print it."""

    diff: GraphDiff
    doers: Doers | None = None
    height: int = HEIGHT

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        for lines in _shorter_and_shorter(self.diff.lines, width):
            shown = list(rendered(lines, self.doers, width))
            if len(shown) <= self.height:
                yield from shown
                return
        rest = list(_summary(self.diff.lines, self.doers or {}, width))
        yield from shown[: max(self.height - len(rest), 0)]
        yield from rest


def _shorter_and_shorter(lines: Sequence[DiffLine], width: int) -> Iterator[list[DiffLine]]:
    yield list(folded(lines, 3))
    names = {name for line in lines for name in DEFINED.findall(line.text)}
    for context in (3, 1, 0):
        yield list(shortened(once(list(folded(lines, context)), names), width))
    rewritten = list(_without_readers(lines))
    yield list(shortened(once(list(folded(rewritten, 0)), names), width))


def _without_readers(lines: Iterable[DiffLine]) -> Iterator[DiffLine]:
    """The lines; ops that only read other values than before are no change."""
    for line in lines:
        if not line.reads_only:
            yield line
        elif line.gutter == "+":
            yield line._replace(gutter=" ")


# -- the same change in many places --------------------------------------------------------------


def once(lines: Sequence[DiffLine], names: set[str]) -> Iterator[DiffLine]:
    """Stretches between counts, those that are alike but for names once, with how often."""
    stretches = [list(each) for _, each in groupby(lines, lambda line: bool(line.stands_for))]
    keys = [_without_names(each, names) for each in stretches]
    skipped: list[DiffLine] = []
    for index, (stretch, key) in enumerate(zip(stretches, keys, strict=True)):
        is_change = any(line.gutter != " " for line in stretch)
        if stretch[0].stands_for or (is_change and key in keys[:index]):
            skipped += stretch
            continue
        yield from _counted(skipped)
        skipped = []
        yield from stretch
        if is_change and (more := keys.count(key) - 1):
            depth = min(line.depth for line in stretch)
            yield DiffLine(" ", depth, f"... and so in {more} more place{'s' * (more > 1)}")
    yield from _counted(skipped)


def _counted(lines: Sequence[DiffLine]) -> Iterator[DiffLine]:
    """A count in place of counts and repeated changes; nothing in place of nothing."""
    if lines:
        yield counted(lines, any(line.gutter != " " for line in lines))


def _without_names(lines: Iterable[DiffLine], names: set[str]) -> Hashable:
    """The lines with numbers for the names of values."""
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        name = match[0]
        return numbers.setdefault(name, f"%{len(numbers)}") if name in names else name

    said = []
    for line in lines:
        results, equals, op = line.text.rpartition(" = ")
        primitive, space, reads = op.partition(" ")
        texts = (NAME.sub(number, results), equals, primitive, space, NAME.sub(number, reads))
        said.append((line.gutter, *texts, line.frame if line.gutter != " " else None))
    return tuple(said)


# -- long lines ----------------------------------------------------------------------------------


def shortened(lines: Iterable[DiffLine], width: int) -> Iterator[DiffLine]:
    """The lines, the long ones without what two have in common, or without their middle."""
    rest = deque(lines)
    while rest:
        line = rest.popleft()
        if (line.gutter, rest and rest[0].gutter) != ("-", "+"):
            yield _without_middle(line, width)
        elif max(len(line.wrapped(width)), len(rest[0].wrapped(width))) > 1:
            after = rest.popleft()
            old, new = _without_common(line.text, after.text)
            yield line._replace(text=old)
            yield after._replace(text=new)
        else:
            yield line
            yield rest.popleft()


def _without_middle(line: DiffLine, width: int) -> DiffLine:
    """`fn (a:f32[3], b:f32[3], ... z:i32[8]) {`"""
    if len(line.wrapped(width)) <= 1:
        return line
    *words, before_last, last = line.text.split(" ")
    end = f"... {before_last} {last}"
    start = textwrap.wrap(" ".join(words), max(width - 2 - 2 * line.depth - len(end) - 1, 20))
    return line._replace(text=f"{start[0]} {end}" if start else line.text)


def _without_common(old: str, new: str) -> tuple[str, str]:
    """Two ops, in whose results and operands stretches of the same words are cut short."""
    if old.count(" = ") != new.count(" = "):
        return old, new
    pairs = [_cut(*pair) for pair in zip(old.split(" = "), new.split(" = "), strict=True)]
    return " = ".join(ours for ours, _ in pairs), " = ".join(theirs for _, theirs in pairs)


def _cut(old: str, new: str) -> tuple[str, str]:
    ours, theirs = old.split(" "), new.split(" ")
    cut: tuple[list[str], list[str]] = ([], [])
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        same = tag == "equal" and j - i > SAME
        for words, part in zip(cut, (ours[i:j], theirs[k:m]), strict=True):
            words.extend([part[0], "...", part[-1]] if same else part)
    return " ".join(cut[0]), " ".join(cut[1])


# -- what finds no room --------------------------------------------------------------------------


def _summary(lines: Iterable[DiffLine], doers: Doers, width: int) -> Iterator[Text]:
    """How much was changed, by whom and where."""
    changed = [line for line in lines if line.gutter != " "]
    yield Text(f"  ... {len(changed)} changed lines in all: -U 3 shows them, --full the program")
    frames = {line.frame: None for line in changed if line.frame is not None}
    by_pass: defaultdict[str, list[Frame]] = defaultdict(list)
    for frame, passes in doers.items():
        for name in passes:
            by_pass[name].append(frame)
    for name, places in by_pass.items() if by_pass else [("changed at", [*frames])]:
        said = textwrap.shorten(f"{name}: {_places(places)}", width - 2, placeholder=" ...")
        yield Text(f"  {said}")


def _places(frames: Iterable[Frame]) -> str:
    """`model.py:8, 11, loss.py:3`."""
    by_file: defaultdict[str, set[int]] = defaultdict(set)
    for file, line, _ in frames:
        by_file[Path(file).name].add(line)
    by_name = (f"{name}:{', '.join(map(str, sorted(each)))}" for name, each in by_file.items())
    return ", ".join(by_name)
