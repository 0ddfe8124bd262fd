"""Rules whose findings are what passes did and would not do to a program, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.frames import Frame
from jaxpr_opt.insight.journal import Waste
from jaxpr_opt.ir.places import Size
from jaxpr_opt.lint.subject import Subject
from jaxpr_opt.reports.account import Place
from jaxpr_opt.reports.figures import formula_text


@dataclass(frozen=True, slots=True)
class Costly:
    """A line whose loop wastes something in each step, and what passes did about it."""

    frame: Frame | None
    size: Size
    """Of the largest that was there."""
    fixed_by: str
    """The pass that did it, the last if several did; empty if none did."""
    refusal: str
    """Why the last pass that looked at it did not, if none did."""

    @property
    def details(self) -> dict[str, Any]:
        """The facts of a finding besides its words."""
        return {
            "frame": self.frame,
            "shape": self.size.shape,
            "bytes": self.size.total,
            "formula": formula_text(self.size.nbytes, self.size.lengths),
            "fixed_by": self.fixed_by,
        }

    @property
    def steps(self) -> str:
        """`each of 4000 steps`"""
        if None in self.size.lengths:
            return "every step"
        return f"each of {' x '.join(f'{n:,}' for n in self.size.lengths if n)} steps"


def costly(subject: Subject, waste: Waste) -> Iterator[Costly]:
    """The lines whose loops waste, in this way, so much that it is worth a finding."""
    found: dict[Frame | None, list[tuple[str, Place]]] = {}
    for each in subject.report.passes:
        for place in (*each.done, *each.refused):
            size = place.size
            if place.waste != waste or not size or not size.lengths:
                continue
            if not cost_model().is_hidden(size.nbytes):
                found.setdefault(place.frame, []).append((each.name, place))
    for frame, places in found.items():
        size = max((p.size for _, p in places if p.size), key=lambda size: size.total)
        if subject.is_worth(size.total):
            done = [name for name, place in places if not place.reason]
            refusals = [place.reason for _, place in places if place.reason]
            yield Costly(frame, size, done[-1] if done else "", "" if done else refusals[-1])
