"""A finding: one thing to change, at one place of the user's source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from jaxpr_opt.frames import Frame

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""Worst first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding says what is wrong, what that costs, and what to do; it is complete by itself."""

    code: str
    """Of the rule, as `JXO101`; it never changes."""
    rule: str
    """The rule's name, as `stacked-loop-invariant`."""
    severity: Severity
    target: str
    """The name of the target it was found in."""
    says: str
    """One sentence: what is wrong, naming the value."""
    reason: str
    """Why it costs, or why the pass that could do something refused."""
    fix: str
    """Which pass does it, or what to write instead."""
    frame: Frame | None
    """Where in the user's source; None if JAX knows no place."""
    shape: str = ""
    """Of the value it is about, as `f32[256,1024,1024]`."""
    bytes: int | None = None
    """What it costs; None where that is not memory."""
    formula: str = ""
    """The bytes in the lengths of the loops around, as `256 x 4.19 MB`."""
    fixed_by: str = ""
    """The name of the pass that removes it where the program is optimised."""

    def to_dict(self) -> dict[str, Any]:
        """The finding for machines; file, line and function are null where unknown."""
        file, line, function = self.frame or (None, None, None)
        return {
            "code": self.code,
            "rule": self.rule,
            "severity": self.severity,
            "target": self.target,
            "says": self.says,
            "reason": self.reason,
            "fix": self.fix,
            "file": file,
            "line": line,
            "function": function,
            "shape": self.shape,
            "bytes": self.bytes,
            "formula": self.formula,
            "fixed_by": self.fixed_by or None,
        }
