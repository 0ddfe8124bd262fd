"""The result of a run of the rules, which every output format shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jaxpr_opt.frames import Frame
from jaxpr_opt.lint.finding import SEVERITIES, Finding, Severity
from jaxpr_opt.lint.options import Mode
from jaxpr_opt.lint.parts import Part
from jaxpr_opt.lint.rule import Rule
from jaxpr_opt.lint.subject import Subject
from jaxpr_opt.printing import plural
from jaxpr_opt.reports.figures import factor
from jaxpr_opt.reports.scaling import GrowthReport
from jaxpr_opt.sizes import bytes_text

How = Literal["comment", "path", "target", "baseline"]

FIGURES: Mapping[str, str] = {
    "input_bytes": "inputs",
    "residual_bytes": "residuals",
    "peak_bytes": "peak, estimated",
    "donated_bytes": "donated",
}
"""What is measured of every target, in bytes, and how it is called."""
NO_GRADIENT = "no gradient"
"""What is said of a program that computes none."""


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A finding that is known, and how that was said."""

    finding: Finding
    how: How


@dataclass(frozen=True, slots=True)
class Checked:
    """One target after the rules have looked at it."""

    name: str
    findings: tuple[Finding, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    figures: Mapping[str, int] = field(default_factory=dict)
    place: Frame | None = None
    parts: Mapping[str, Sequence[Part]] = field(default_factory=dict)
    """What the figures are made of, the largest first."""
    growth: GrowthReport | None = None
    """How it grows, where it was looked at at several sizes."""
    how: str = ""
    """What was looked at, where that is not what the user said."""
    min_bytes: int = 0
    """Below this nothing was reported."""
    error: str = ""
    """Why it could not be looked at."""

    @property
    def is_small(self) -> bool:
        """Whether its residuals are too few to be reported, though many beside its inputs."""
        kept, given = (self.figures.get(key, 0) for key in ("residual_bytes", "input_bytes"))
        return given / 10 < kept < self.min_bytes

    def figures_text(self) -> str:
        """`as a loss; residuals 134 MB, 2.1 times the inputs; peak 240 MB; donated 0 B`."""
        if not self.figures:
            return ""
        kept, given = self.figures["residual_bytes"], self.figures["input_bytes"]
        times = f", {factor(kept / given)} times the inputs" if kept > given / 10 > 0 else ""
        peak, donated = (bytes_text(self.figures[key]) for key in ("peak_bytes", "donated_bytes"))
        kept_text = [] if self.how == NO_GRADIENT else [f"residuals {bytes_text(kept)}{times}"]
        figures = [*kept_text, f"peak {peak}", f"donated {donated}"]
        return "; ".join([self.how, *figures] if self.how else figures)


@dataclass(frozen=True, slots=True)
class Result:
    """What all targets come to."""

    targets: tuple[Checked, ...]
    rules: tuple[Rule, ...]
    """Those that have run."""
    root: Path
    """What the paths of files are shown relative to."""
    seconds: float = 0.0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those of all targets, worst first."""
        return tuple(sorted((f for each in self.targets for f in each.findings), key=badness))

    @property
    def errors(self) -> tuple[Checked, ...]:
        """Targets that could not be looked at."""
        return tuple(each for each in self.targets if each.error)

    @property
    def exit_code(self) -> int:
        """2: a target could not be looked at; 1: there are findings other than notes; else 0."""
        if self.errors:
            return 2
        return int(any(finding.severity != "note" for finding in self.findings))

    @property
    def unreported(self) -> int:
        """`min-bytes` of a target whose residuals are less, though more than a tenth of its inputs;
        0 if there is none.
        """
        return max((each.min_bytes for each in self.targets if each.is_small), default=0)

    def counts(self) -> dict[Severity, int]:
        """How many findings there are of each severity, worst first."""
        counted = Counter(finding.severity for finding in self.findings)
        return {severity: counted[severity] for severity in SEVERITIES if counted[severity]}

    def summary(self) -> str:
        """One line: `3 findings (1 error, 2 warnings) in 2 targets, 1 suppressed`."""
        counts = self.counts()
        parts = ", ".join(plural(n, severity) for severity, n in counts.items())
        total = plural(sum(counts.values()), "finding") if counts else "no findings"
        suppressed = sum(len(each.suppressed) for each in self.targets)
        return (
            f"{total}{f' ({parts})' if len(counts) > 1 else ''}"
            f" in {plural(len(self.targets) - len(self.errors), 'target')}"
            f"{f', {suppressed} suppressed' if suppressed else ''}"
            f"{f', {len(self.errors)} could not be traced' if self.errors else ''}"
        )


def badness(finding: Finding) -> tuple[int, int, str, Any]:
    """The key by which findings are sorted: worst first, then the largest."""
    order = SEVERITIES.index(finding.severity)
    return order, -(finding.bytes or 0), finding.code, finding.frame or ("", 0, "")


def grown(subject: Subject) -> GrowthReport | None:
    """How a target grows, if its arguments do."""
    if subject.scaling is None or subject.growth is None:
        return None
    return GrowthReport(subject.name, subject.scaling.name, subject.growth)


def how_looked_at(subject: Subject, mode: Mode) -> str:
    """How the function was looked at, in words; empty where the user said it."""
    if mode == "auto" and subject.mode == "gradient":
        return "as a loss"
    return "" if subject.has_gradient else NO_GRADIENT


def measured(subject: Subject) -> dict[str, int]:
    """The figures of a target, in bytes."""
    return {name: getattr(subject, name) for name in FIGURES}
