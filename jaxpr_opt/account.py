"""What the journals of several pipelines come to, pass by pass.

One function makes several programs: forward and backward, each in the first and in the final phase.
What a pass did to them is told once, with the number of times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxpr_opt.frames import Frame, frame_text
from jaxpr_opt.pipeline import Journal, PassRecord, Rewrite


@dataclass(frozen=True, slots=True)
class Place:
    """Something a pass did, or would not do, at one place of the user's source."""

    says: str
    frame: Frame | None
    times: int
    reason: str = ""
    """Why it was not done; empty where it was."""

    def __str__(self) -> str:
        where = [frame_text(self.frame)] if self.frame is not None else []
        where += [f"{self.times} times"] if self.times > 1 else []
        reason = f": {self.reason}" if self.reason else ""
        return self.says + (f" ({'; '.join(where)})" if where else "") + reason

    def to_dict(self) -> dict[str, Any]:
        where = (
            dict(zip(("file", "line", "function"), self.frame, strict=True)) if self.frame else None
        )
        why = {"reason": self.reason} if self.reason else {}
        return {"says": self.says, **why, "where": where, "times": self.times}


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did, over all programs that were made of the function."""

    name: str
    cleanup: bool
    done: tuple[Place, ...]
    refused: tuple[Place, ...]
    seconds: float

    @property
    def count(self) -> int:
        return sum(place.times for place in self.done)

    def to_dict(self) -> dict[str, Any]:
        return {
            "pass": self.name,
            "seconds": self.seconds,
            "done": [place.to_dict() for place in self.done],
            "refused": [place.to_dict() for place in self.refused],
        }


def accounts(journals: Sequence[Journal]) -> tuple[PassReport, ...]:
    """What every pass did, in order of first run."""
    records = [record for journal in journals for record in journal.records.values()]
    names = dict.fromkeys(record.name for record in records)
    return tuple(_account([record for record in records if record.name == name]) for name in names)


def _account(records: Sequence[PassRecord]) -> PassReport:
    rewrites = [rewrite for record in records for rewrite in record.rewrites]
    made = {(rewrite.says, rewrite.frame) for rewrite in rewrites}
    # A place refused in one program may be rewritten in a later one; every phase asks again.
    refused = dict.fromkeys(
        Place(refusal.says, refusal.frame, 1, refusal.reason)
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
    )


def _counted(rewrites: Iterable[Rewrite]) -> tuple[Place, ...]:
    times = Counter((rewrite.says, rewrite.frame) for rewrite in rewrites)
    return tuple(Place(says, frame, count) for (says, frame), count in times.items())
