"""Mutants that no test can kill, as what is computed stays right: where, what, and why.

A condition that only saves time, that others imply, or that recognises less than it might, cites
its number like any other: who reads the pass sees what it is part of.  ``make mutants`` lists these
mutants by themselves.
"""

from __future__ import annotations

_SAVES = "saves time: "
_TYPES = "only for the type checker: "
_MORE = "recognises more: "

HARMLESS: dict[str, dict[str, str]] = {
    "replay_steps.ReplaySteps.find": {
        "without: or not found": _SAVES + "there is no cut of no residuals",
    },
    "simplify.involution": {
        "without: and inner.params == op.params": "of the other pass: these have no parameters",
    },
}
"""By module and function: the mutant, and why it does no harm."""
