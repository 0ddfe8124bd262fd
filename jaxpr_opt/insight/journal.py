"""The record of what passes did to a program, which `explain` reads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxpr_opt.frames import Frame
from jaxpr_opt.ir.graph import Graph, Phase
from jaxpr_opt.ir.places import Size

Waste = Literal["copy", "select", "zeros"]
"""What a step does with a whole array of which it changes a piece: copies it to write into it,
chooses between it and the old one, makes zeros and adds them."""

Measure = Callable[[Graph], Any]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One application of a pass: what it did, from where in the user's source, with how many
    edits.
    """

    says: str
    frame: Frame | None
    edits: int
    size: Size | None = None
    """Of what it was about, if the pass tells."""
    waste: Waste | None = None
    """What it saves in each step of a loop, if the pass tells."""
    is_cleanup: bool = False
    """Whether it only tidies up."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A near miss: what the pass would have done, and why it did not."""

    says: str
    reason: str
    frame: Frame | None
    size: Size | None = None
    waste: Waste | None = None


@dataclass(slots=True)
class PassRecord:
    """What one pass did to one program."""

    name: str
    cleanup: bool
    rewrites: list[Rewrite] = field(default_factory=list)
    refusals: dict[Refusal, None] = field(default_factory=dict)
    """Those of its last run, each once, in order."""
    seconds: float = 0.0


@dataclass(slots=True)
class Journal:
    """What a pipeline did to one program, pass by pass in order of first run."""

    phase: Phase
    records: dict[str, PassRecord] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)
    with_refusals: bool = True
    """Whether somebody may read why places were left alone."""
    seconds: float = 0.0
    name: str = ""
    """Of the program."""
    trail: list[tuple[str, Any]] = field(default_factory=list)
    """`(pass, what was measured after it)` each time one fired, the start first; empty unless
    somebody measures."""

    def record(self, name: str, cleanup: bool) -> PassRecord:
        """The record of a pass, a new one the first time."""
        return self.records.setdefault(name, PassRecord(name, cleanup))

    def absorb(self, other: Journal) -> None:
        """Add what was done after this, by the same pipeline or a part of it."""
        for name, record in other.records.items():
            mine = self.record(name, record.cleanup)
            mine.rewrites += record.rewrites
            mine.refusals = record.refusals | mine.refusals
            mine.seconds += record.seconds
        self.trail += other.trail

    @property
    def touched(self) -> bool:
        """Whether any pass fired."""
        return any(r.rewrites for r in self.records.values())

    @property
    def changed(self) -> bool:
        """Whether a pass other than a cleanup fired, and did more than tidy up."""
        records = (record for record in self.records.values() if not record.cleanup)
        return any(not rewrite.is_cleanup for record in records for rewrite in record.rewrites)


_listeners: list[tuple[list[Journal], Measure | None]] = []


@contextlib.contextmanager
def collect_journals(measure: Measure | None = None) -> Iterator[list[Journal]]:
    """The journals of every pipeline that runs inside, e.g. while a function is lowered.

    `measure` is asked about the graph before the first pass and after every one that fired.
    """
    journals: list[Journal] = []
    _listeners.append((journals, measure))
    try:
        yield journals
    finally:
        _listeners[:] = [each for each in _listeners if each[0] is not journals]


def is_collected() -> bool:
    """Whether anybody collects journals."""
    return bool(_listeners)


def publish(journal: Journal) -> None:
    """Hand a finished journal to whoever collects."""
    for journals, _ in _listeners:
        journals.append(journal)


def measure(name: str, graph: Graph, journal: Journal) -> None:
    """Measure a graph after pass `name` (empty for the start), for whoever measures."""
    for _, how in _listeners:
        if how is not None:
            journal.trail.append((name, how(graph)))
