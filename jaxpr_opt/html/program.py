"""The rewrites of passes, and the diff of the program with regions to fold."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from jaxpr_opt.frames import Frame
from jaxpr_opt.html.markup import Markup, element, scrolled, together
from jaxpr_opt.html.places import key, link
from jaxpr_opt.html.prose import prose
from jaxpr_opt.printing import plural
from jaxpr_opt.reports.account import PassReport, Place
from jaxpr_opt.reports.diff import DiffLine
from jaxpr_opt.reports.report import Report
from jaxpr_opt.reports.unified import Doers, doers

CONTEXT = 2
"""Unchanged lines shown around a change; longer stretches are folded."""
BEGINNING = 40
"""Lines shown of a region without a change."""

ALIKE = 0.5
"""Lines less alike are not compared word by word."""
_WORDS = re.compile(r"[^\s,()]+|[\s,()]+")


@dataclass(slots=True)
class Node:
    """A line, and what is inside the region it opens."""

    line: DiffLine
    inside: list[Node] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        return self.line.gutter != " " or any(node.changed for node in self.inside)

    @property
    def size(self) -> int:
        return 1 + sum(node.size for node in self.inside)


def section(report: Report) -> Markup:
    """The passes, then the diff; the program alone where nothing was done."""
    lines, by_place = report.diff.lines, doers(report.passes)
    return element(
        "section",
        element("h2", "Program"),
        _passes(report),
        scrolled(
            list(_nodes(tree(lines), by_place)),
            "the program before and after" if report.changed else "the program",
            class_="diff scroll",
        ),
        id="program",
    )


# -- the passes ----------------------------------------------------------------------------------


def _passes(report: Report) -> Markup | None:
    fired = [each for each in report.passes if each.done and not each.cleanup]
    missed = [each for each in report.passes if each.refused and not each.cleanup]
    blocks = [_pass(each, each.done, each.saved.text(report.diff.before), "done") for each in fired]
    blocks += [_pass(each, each.refused, "left alone", "refused") for each in missed]
    blocks += [element("p", message, class_="remark error") for message in report.failures]
    return element("div", blocks, class_="passes") if blocks else None


def _pass(each: PassReport, places: Sequence[Place], what: str, kind: str) -> Markup:
    count = plural(sum(place.times for place in places), "place")
    summary = element(
        "summary",
        element("code", each.name),
        " ",
        element("small", ", ".join(filter(None, [count, what]))),
    )
    listed = [element("li", list(_place(place))) for place in places]
    return element("details", summary, element("ul", listed), class_=f"pass {kind}")


def _place(place: Place) -> Iterator[Markup]:
    times = f" ({place.times} times)" if place.times > 1 else ""
    reason = f": {place.reason}" if place.reason else ""
    yield prose(f"{place.says}{times}{reason}")
    yield element("span", " ", link(place.frame), class_="where")


# -- the diff ------------------------------------------------------------------------------------


def tree(lines: Sequence[DiffLine]) -> list[Node]:
    """Lines as a forest: what is further in belongs to the line before."""
    roots: list[Node] = []
    open_: list[Node] = []
    for line in lines:
        del open_[line.depth :]
        node = Node(line)
        (open_[-1].inside if open_ else roots).append(node)
        open_ += [node] * (line.depth + 1 - len(open_))
    return roots


def _nodes(nodes: Sequence[Node], doers: Doers) -> Iterator[Markup]:
    """The nodes of one region: changes and a few lines around them, the others folded.

    Where nothing has changed, the beginning is shown.
    """
    near = {
        index + offset
        for index, node in enumerate(nodes)
        if node.changed
        for offset in range(-CONTEXT, CONTEXT + 1)
    } or set(range(BEGINNING))
    previous: tuple[str, Frame | None] = ("", None)
    hidden: list[Node] = []
    texts = _texts(nodes)
    for index, node in enumerate(nodes):
        if index not in near:
            hidden.append(node)
            continue
        yield from _folded(hidden, doers)
        hidden = []
        place = (node.line.gutter, node.line.frame)
        yield _node(node, doers, place != previous, texts.get(index))
        previous = place
    yield from _folded(hidden, doers)


def _folded(nodes: Sequence[Node], doers: Doers) -> Iterator[Markup]:
    size = sum(node.size for node in nodes)
    shown = [_node(node, doers) for node in nodes]
    if size <= 2 * CONTEXT:
        yield from shown
    else:
        summary = element("summary", f"⋯ {size:,} lines", class_="fold")
        yield element("details", summary, shown)


def _texts(nodes: Sequence[Node]) -> dict[int, Markup]:
    """Lines that have become others, with the words marked that differ."""
    found: dict[int, Markup] = {}
    for index, (old, new) in enumerate(itertools.pairwise(nodes)):
        if (old.line.gutter, new.line.gutter) == ("-", "+"):
            marked = _marked(_WORDS.findall(old.line.text), _WORDS.findall(new.line.text))
            if marked is not None:
                found[index], found[index + 1] = marked
    return found


def _marked(old: list[str], new: list[str]) -> tuple[Markup, Markup] | None:
    """Both texts; nothing if they have little in common."""
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    if matcher.ratio() < ALIKE:
        return None
    ours: list[Markup] = []
    theirs: list[Markup] = []
    for tag, i, end, j, other_end in matcher.get_opcodes():
        for parts, words in ((ours, old[i:end]), (theirs, new[j:other_end])):
            text = "".join(words)
            parts.append(element("mark", text) if text and tag != "equal" else together(text))
    return together(ours), together(theirs)


def _node(node: Node, doers: Doers, names: bool = False, text: Markup | None = None) -> Markup:
    line = _line(node.line, doers, names, text)
    if not node.inside:
        return line
    body = list(_nodes(node.inside, doers))
    return element("details", element("summary", line), body, open=True, class_="region")


def _line(line: DiffLine, doers: Doers, names: bool, text: Markup | None) -> Markup:
    kind = {"-": "gone", "+": "new", " ": ""}[line.gutter]
    by = ", ".join(doers.get(line.frame, ())) if line.frame is not None and kind and names else ""
    return element(
        "div",
        element("span", line.gutter, class_="gutter"),
        element("code", text or line.text),
        element("span", by, class_="by", title=by) if by else None,
        class_=f"line {kind}".rstrip(),
        style=f"--depth:{line.depth}",
        data_at=key(line.frame) or None,
    )
