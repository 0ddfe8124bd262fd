"""The journals of several pipelines added up, pass by pass.

One function makes several programs: forward and backward, each in the first and in the final phase.
What a pass did to them is listed once, with the number of times and what it saved.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxpr_opt.frames import Frame, frame_text
from jaxpr_opt.insight.journal import Journal, PassRecord, Rewrite, Waste
from jaxpr_opt.insight.summary import Summary
from jaxpr_opt.ir.places import Size
from jaxpr_opt.reports.figures import number_text
from jaxpr_opt.sizes import bytes_text

_ABOUT = re.compile(r"[\w-]+ of `[^`]+` ")
"""The op that a sentence begins with, as `Value.label` calls it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Something a pass did, or would not do, at one place of the user's source."""

    says: str
    frame: Frame | None
    times: int
    reason: str = ""
    """Why it was not done; empty where it was."""
    size: Size | None = None
    """Of what it was about, the largest where it was done several times; if the pass tells."""
    waste: Waste | None = None
    """What it saves in each step of a loop, if the pass tells."""

    def __str__(self) -> str:
        where = [frame_text(self.frame)] if self.frame is not None else []
        where += [f"{self.times} times"] if self.times > 1 else []
        place = f" ({'; '.join(where)})" if where else ""
        if not self.reason:
            return self.says + place
        about = _ABOUT.match(self.reason)
        again = about is not None and self.says.startswith(about[0])
        says = f"it {self.says[about.end() :]}" if about is not None and again else self.says
        return f"{self.reason}{place}, which prevents: {says}"

    def to_dict(self) -> dict[str, Any]:
        where = (
            dict(zip(("file", "line", "function"), self.frame, strict=True)) if self.frame else None
        )
        why = {"reason": self.reason} if self.reason else {}
        return {"says": self.says, **why, "where": where, "times": self.times}


@dataclass(frozen=True, slots=True)
class Savings:
    """What a pass took off the program, with the tidying up after it; negative where it added."""

    residual_bytes: int = 0
    flops: int = 0

    def __add__(self, other: Savings) -> Savings:
        return Savings(self.residual_bytes + other.residual_bytes, self.flops + other.flops)

    def text(self, whole: Summary) -> str:
        """`saves 33.8 MB kept for the gradient, adds 2.1 M FLOPs`; nothing below 1% of `whole`."""
        amounts = [
            (self.residual_bytes, whole.residual_bytes, bytes_text, " kept for the gradient"),
            (self.flops, whole.flops or 0, number_text, " FLOPs"),
        ]
        changes = [
            (n, write(abs(n)) + what) for n, total, write, what in amounts if 100 * abs(n) > total
        ]
        signs = [
            ("saves", [t for n, t in changes if n > 0]),
            ("adds", [t for n, t in changes if n < 0]),
        ]
        return ", ".join(f"{verb} {' and '.join(texts)}" for verb, texts in signs if texts)


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did, over all programs that were made of the function."""

    name: str
    cleanup: bool
    done: tuple[Place, ...]
    refused: tuple[Place, ...]
    seconds: float
    saved: Savings

    @property
    def count(self) -> int:
        return sum(place.times for place in self.done)

    def to_dict(self) -> dict[str, Any]:
        return {
            "pass": self.name,
            "seconds": self.seconds,
            "saved": asdict(self.saved),
            "done": [place.to_dict() for place in self.done],
            "refused": [place.to_dict() for place in self.refused],
        }


def accounts(journals: Sequence[Journal]) -> tuple[PassReport, ...]:
    """The account of every pass, in order of first run."""
    records = [record for journal in journals for record in journal.records.values()]
    names = dict.fromkeys(record.name for record in records)
    saved = _saved(journals, cleanups={record.name for record in records if record.cleanup})
    return tuple(
        _account([record for record in records if record.name == name], saved.get(name, Savings()))
        for name in names
    )


def _account(records: Sequence[PassRecord], saved: Savings) -> PassReport:
    rewrites = [rewrite for record in records for rewrite in record.rewrites]
    made = {(rewrite.says, rewrite.frame) for rewrite in rewrites}
    # A place refused in one program may be rewritten in a later one; every phase asks again.
    refused = dict.fromkeys(
        Place(refusal.says, refusal.frame, 1, refusal.reason, refusal.size, refusal.waste)
        for record in records
        for refusal in record.refusals
        if (refusal.says, refusal.frame) not in made
    )
    return PassReport(
        name=records[0].name,
        cleanup=records[0].cleanup,
        done=_counted(rewrites),
        refused=tuple(refused),
        seconds=sum(record.seconds for record in records),
        saved=saved,
    )


def _saved(journals: Sequence[Journal], cleanups: set[str]) -> dict[str, Savings]:
    """The bytes that each pass saved: tidying up is credited to the pass that left something
    behind.
    """
    total: dict[str, Savings] = {}
    for journal in journals:
        credited = ""
        for (_, before), (name, after) in itertools.pairwise(journal.trail):
            credited = credited if name in cleanups else name
            total[credited] = total.get(credited, Savings()) + _saving(before, after)
    return total


def _saving(before: Summary, after: Summary) -> Savings:
    flops = 0
    if before.flops is not None and after.flops is not None:
        flops = before.flops - after.flops
    return Savings(before.residual_bytes - after.residual_bytes, flops)


def _counted(rewrites: Iterable[Rewrite]) -> tuple[Place, ...]:
    alike: dict[tuple[str, Frame | None], list[Rewrite]] = {}
    for rewrite in rewrites:
        alike.setdefault((rewrite.says, rewrite.frame), []).append(rewrite)
    return tuple(
        Place(
            says,
            frame,
            len(group),
            size=max((r.size for r in group if r.size), key=lambda s: s.total, default=None),
            waste=next((r.waste for r in group if r.waste), None),
        )
        for (says, frame), group in alike.items()
    )
