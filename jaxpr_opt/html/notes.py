"""Notes on lines of the source: findings, rewrites and refusals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxpr_opt.frames import Frame
from jaxpr_opt.html.markup import Content, Markup, element
from jaxpr_opt.html.places import link
from jaxpr_opt.html.prose import prose
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.reports.account import PassReport, Place
from jaxpr_opt.sizes import bytes_text

MARKS = {"error": "✗", "warning": "!", "note": "i", "done": "✓", "refused": "="}
"""Kinds of notes, and their signs: those of findings by severity, and those of passes."""
SHOWN = 8
"""Findings that are listed; more are folded."""
WORDS = {"done": "done", "refused": "left alone"}


@dataclass(frozen=True, slots=True)
class Note:
    """Something to say about one place."""

    kind: str
    title: str
    """The rule or the pass."""
    says: Content
    frame: Frame | None

    def markup(self, where: Markup | None = None) -> Markup:
        """The note as it stands below its line; `where` it is, if it stands elsewhere."""
        sign = element("b", MARKS[self.kind], title=WORDS.get(self.kind, self.kind), class_="mark")
        title = [element("code", self.title, class_="title"), " "]
        place = [where, " "] if where else None
        return element(
            "div", sign, element("div", title, place, self.says), class_=f"remark {self.kind}"
        )


def of_findings(findings: Iterable[Finding]) -> Iterator[Note]:
    """A note for each finding."""
    for each in findings:
        size = bytes_text(each.bytes) if each.bytes else ""
        size += f" = {each.formula}" if size and each.formula else ""
        says = [
            prose(f"{each.says}: {each.reason} "),
            element("small", size) if size else None,
            element("span", prose(each.fix), class_="fix"),
        ]
        yield Note(each.severity, f"{each.code} {each.rule}", says, each.frame)


def section(findings: Sequence[Note]) -> Markup | None:
    """The findings, the worst first, with links to the lines."""
    if not findings:
        return None
    shown, rest = (
        [element("li", note.markup(link(note.frame))) for note in findings[part]]
        for part in (slice(SHOWN), slice(SHOWN, None))
    )
    more = element("summary", f"{len(rest)} more")
    return element(
        "section",
        element("h2", "Findings"),
        element("ul", shown, class_="findings"),
        element("details", more, element("ul", rest, class_="findings")) if rest else None,
        id="findings",
    )


def of_passes(passes: Iterable[PassReport]) -> Iterator[Note]:
    """A note for each place that a pass changed, then for those it left alone."""
    rewriting = [each for each in passes if not each.cleanup]
    for kind in ("done", "refused"):
        for each in rewriting:
            by_frame: defaultdict[Frame | None, list[Place]] = defaultdict(list)
            for place in getattr(each, kind):
                by_frame[place.frame].append(place)
            yield from (
                Note(kind, each.name, _places(places), frame) for frame, places in by_frame.items()
            )


def _places(places: Sequence[Place]) -> Content:
    """The first, and how many more there are on the same line."""
    first, *others = map(_says, places)
    if not others:
        return first
    listed = element("ul", [element("li", each) for each in others])
    return [first, element("details", element("summary", f"and {len(others)} more"), listed)]


def _says(place: Place) -> Content:
    times = f" ({place.times} times)" if place.times > 1 else ""
    reason = f": {place.reason}" if place.reason else ""
    return prose(f"{place.says}{times}{reason}")
