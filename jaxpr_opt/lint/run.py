"""Running rules over subjects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jaxpr_opt.frames import frame_text
from jaxpr_opt.lint.finding import SEVERITIES, Finding
from jaxpr_opt.lint.rule import Rule, rules
from jaxpr_opt.lint.subject import Subject, subject


def lint(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Finding, ...]:
    """What the default rules find in ``fun(*args, **kwargs)``, worst first.

    Args:
      fun: plain, jitted or optimised.
      *args: arrays, or `jax.ShapeDtypeStruct`s for them: no data is needed, nothing is compiled.
      **kwargs: the same.
    """
    if not callable(fun):
        raise TypeError(f"lint: fun must be callable, got {fun!r}")
    return check(subject(fun, *args, **kwargs), defaults())


def defaults() -> tuple[Rule, ...]:
    """The rules that run unless told otherwise."""
    return tuple(rule for rule in rules().values() if rule.default)


def check(about: Subject, chosen: Iterable[Rule]) -> tuple[Finding, ...]:
    """What these rules find, each thing once, worst first."""
    found = dict.fromkeys(finding for rule in chosen for finding in rule.check(about))
    return tuple(sorted(found, key=_badness))


def _badness(finding: Finding) -> tuple[int, int, str, str]:
    where = "" if finding.frame is None else frame_text(finding.frame)
    return SEVERITIES.index(finding.severity), -(finding.bytes or 0), finding.code, where
