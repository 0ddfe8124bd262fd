"""The user's source, with the residuals and findings of each line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxpr_opt.frames import is_installed
from jaxpr_opt.html.excerpt import spans
from jaxpr_opt.html.highlight import highlighted
from jaxpr_opt.html.markup import Markup, element, scrolled
from jaxpr_opt.html.notes import Note
from jaxpr_opt.html.places import anchor, key, short
from jaxpr_opt.insight.saved import kept
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.ir.places import user_frame
from jaxpr_opt.printing import plural
from jaxpr_opt.reports.residual_rows import frame_of
from jaxpr_opt.sizes import bytes_text

NOTES = 3
"""Notes shown below a line; more are folded."""
BLANK = (element("td", class_="kept"), element("td", class_="number"))
"""The columns left of the code, empty."""

Spot = tuple[str, int]
"""File and line."""


@dataclass(frozen=True, slots=True)
class Margin:
    """What is known of the lines of the source."""

    lines: dict[str, set[int]]
    """Those that there is an op or a note for, by file."""
    before: Counter[Spot]
    """Bytes that the gradient keeps of what a line makes."""
    after: Counter[Spot]
    """The same in the optimised program."""
    notes: dict[Spot, list[Note]]

    @property
    def most(self) -> int:
        """The most that is kept of one line."""
        return max((*self.before.values(), *self.after.values()), default=0)

    def weight(self, file: str) -> int:
        """How much there is to see in a file."""
        spots = [(file, line) for line in self.lines[file]]
        return sum(self.before[spot] + len(self.notes.get(spot, ())) for spot in spots)


def margin(before: Graph, after: Graph, notes: Iterable[Note]) -> Margin:
    """Gather what there is to say line by line."""
    by_spot: defaultdict[Spot, list[Note]] = defaultdict(list)
    for note in notes:
        if note.frame is not None:
            by_spot[note.frame[:2]].append(note)
    frames = map(user_frame, (*before.walk(), *after.walk()))
    sizes = _kept(before), _kept(after)
    spots = {*(frame[:2] for frame in frames if frame is not None), *by_spot, *sizes[0], *sizes[1]}
    lines: defaultdict[str, set[int]] = defaultdict(set)
    for file, line in spots:
        lines[file].add(line)
    return Margin(lines, *sizes, by_spot)


def _kept(graph: Graph) -> Counter[Spot]:
    total: Counter[Spot] = Counter()
    for each in kept(graph):
        frame = frame_of(each.made)
        if frame is not None and each.nbytes:
            total[frame[:2]] += each.nbytes
    return total


def section(before: Graph, after: Graph, notes: Sequence[Note]) -> Markup:
    """The user's files first, open; those of installed packages folded."""
    known = margin(before, after, notes)
    order = sorted(known.lines, key=lambda name: (is_installed(name), -known.weight(name), name))
    files = [_file(name, known) for name in order if Path(name).is_file()]
    says = "Left of a line: what is kept of it for the backward pass."
    return element(
        "section",
        element("h2", "Source"),
        element("p", says, class_="aside") if known.most else None,
        files,
        id="source",
    )


def _file(name: str, known: Margin) -> Markup:
    text = Path(name).read_text(encoding="utf-8", errors="replace")
    code = highlighted(text)
    rows: list[Markup] = []
    shown = 0
    for first, last in spans(text, known.lines[name]):
        rows += _elided(first - shown - 1)
        for number in range(first, last + 1):
            rows += _rows((name, number), code[number - 1], known)
        shown = last
    rows += _elided(len(code) - shown)
    table = element(
        "table", element("tbody", rows), class_="code weighed" if known.most else "code"
    )
    return element(
        "details",
        element("summary", element("code", Path(name).name), " ", element("small", short(name))),
        scrolled(table, f"source of {Path(name).name}"),
        open=not is_installed(name),
    )


def _elided(count: int) -> Iterator[Markup]:
    if count:
        yield element("tr", *BLANK, element("td", f"⋯ {plural(count, 'line')}"), class_="elided")


def _rows(spot: Spot, code: Markup, known: Margin) -> Iterator[Markup]:
    """A line, and the notes below it."""
    name, number = spot
    before, after = known.before[spot], known.after[spot]
    yield element(
        "tr",
        element("td", _kept_bar(before, after, known.most), class_="kept"),
        element("td", str(number), class_="number"),
        element("td", element("code", code)),
        id=anchor(name, number),
        class_=_tone(before, after),
        data_at=key((name, number, "")) if number in known.lines[name] else None,
    )
    if notes := known.notes.get(spot):
        yield element("tr", *BLANK, element("td", _notes(notes)), class_="remarks")


def _tone(before: int, after: int) -> str | None:
    """How a line is coloured: something saved, something kept that stays, or more than before."""
    if before == after:
        return "stays" if before else None
    return "saved" if after < before else "added"


def _kept_bar(before: int, after: int, most: int) -> Markup | None:
    if not before and not after:
        return None
    was, now = (bytes_text(size) if size else "0" for size in (before, after))
    text = was if before == after else f"{was} → {now}"
    share = f"--before:{before / most:.4f};--after:{after / most:.4f}"
    return element("span", text, class_="weight", style=share)


def _notes(notes: Sequence[Note]) -> Markup:
    shown, rest = ([note.markup() for note in some] for some in (notes[:NOTES], notes[NOTES:]))
    more = element("details", element("summary", f"{len(rest)} more"), rest) if rest else None
    return element("div", shown, more)
