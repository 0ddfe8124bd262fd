"""Run rules over targets, and sort out the findings of a baseline."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxpr_opt import settings
from jaxpr_opt.bridge.compat_frames import boundary
from jaxpr_opt.bridge.interpreter_stack import uncollected
from jaxpr_opt.errors import TargetError, check_function
from jaxpr_opt.frames import Frame, blame, is_installed, raised_at
from jaxpr_opt.lint.baseline import Baseline
from jaxpr_opt.lint.config import Config, codes_of
from jaxpr_opt.lint.discover import Lost
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.findings import Findings
from jaxpr_opt.lint.parts import parts
from jaxpr_opt.lint.result import (
    Checked,
    How,
    Result,
    Suppressed,
    badness,
    grown,
    how_looked_at,
    measured,
)
from jaxpr_opt.lint.rule import Rule, rules
from jaxpr_opt.lint.rules.comments import UnusedSuppression
from jaxpr_opt.lint.subject import Subject, as_loss, subject
from jaxpr_opt.lint.suppress import Comment, comments, names
from jaxpr_opt.lint.target import Target


@boundary
def lint(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Findings:
    """Run the default rules on ``fun(*args, **kwargs)``; findings come worst first.

    For a function that returns a float, a loss, the gradient is linted.

    Args:
      fun: plain, jitted or optimised.
      *args: arrays, or `jax.ShapeDtypeStruct` objects for them: no data is needed, and nothing is
        compiled.
      **kwargs: the same.

    Returns:
      The findings: iterate, `print`, or call `to_dict()` of each.

    Raises:
      TypeError: `fun` is not a function.

    Example:
      >>> def mean(x):
      ...     return jnp.mean(x)
      >>> print(jaxpr_opt.lint(mean, jax.ShapeDtypeStruct((8,), "float32")))
      No findings.
    """
    check_function(fun, "lint")
    return Findings(check(as_loss(subject(fun, *args, **kwargs)), defaults()))


def defaults() -> tuple[Rule, ...]:
    """The rules that run unless told otherwise."""
    return tuple(rule for rule in rules().values() if rule.default)


def check(about: Subject, chosen: Collection[Rule]) -> tuple[Finding, ...]:
    """The findings of these rules, each thing once and by the rule that says most, worst first.

    What is about no line is where the function is defined.

    Raises:
      Exception: what tracing the function raised, if no rule is about that.
    """
    found: Iterable[Finding]
    if about.failure is None:
        found = (finding for rule in chosen for finding in _guarded(rule, about))
    elif not (found := _explained(about, chosen)):
        raise about.failure
    located = dict.fromkeys(
        finding if finding.frame is not None else replace(finding, frame=about.place)
        for finding in found
    )
    subsumed = {rule.code: rule.subsumes for rule in chosen}
    said = {(code, each.frame) for each in located for code in subsumed[each.code]}
    return tuple(sorted((f for f in located if (f.code, f.frame) not in said), key=badness))


def _explained(about: Subject, chosen: Collection[Rule]) -> list[Finding]:
    """The findings of rules in a function that could not be traced; none if that is not theirs to
    say.
    """
    return [finding for rule in chosen for finding in rule.explain(about)]


def _guarded(rule: Rule, about: Subject) -> Iterator[Finding]:
    """The findings of one rule; should it fail, an error with its name."""
    try:
        yield from rule.check(about)
    except TargetError:
        raise
    except Exception as error:
        if settings.current().strict:
            raise
        raise TargetError(f"{about.name}: the rule {rule.name} failed: {blame(error)}") from error


def _at(error: TargetError) -> Frame | None:
    """The user's line that raised what became the error; None if it was none of theirs."""
    frame = None if error.__cause__ is None else raised_at(error.__cause__)
    return None if frame is None or is_installed(frame[0]) else frame


def _nobody(what: str) -> None:
    del what


@dataclass(slots=True)
class Run:
    """One run of `jaxpr-opt lint`."""

    config: Config
    rules: tuple[Rule, ...]
    baseline: Baseline | None = None
    tell: Callable[[str], None] = _nobody
    """Is told what is being looked at."""
    stops: bool = False
    """Whether the first target that cannot be traced is the end."""
    subjects: list[Subject] = field(default_factory=list)
    used: set[tuple[Comment, str]] = field(default_factory=set)
    """Comments that have suppressed something, and with which of their rules."""

    def result(self, targets: Sequence[Target], lost: Sequence[Lost] = ()) -> Result:
        """Look at every target; one that cannot be traced does not keep the others from it."""
        started = time.perf_counter()
        if lost and self.stops:
            raise lost[0].error
        checked = [Checked(e.name, error=f"{e.name}: {e.error}", place=e.place) for e in lost]
        for index, target in enumerate(targets, 1):
            self.tell(f"looking at {target.name} ({index} of {len(targets)})")
            with uncollected():
                checked.append(self._checked(target))
        checked = self._with_unused_comments(checked)
        seconds = time.perf_counter() - started
        return Result(tuple(checked), self.rules, self.config.root, seconds)

    def _checked(self, target: Target) -> Checked:
        try:
            about = self._traced(target)
            found = check(about, self.rules)
        except TargetError as error:
            if self.stops:
                raise
            return Checked(target.name, error=str(error), place=_at(error) or target.place)
        ignored = codes_of(target.spec.ignore, f"target {target.name}: ignore")
        kept, suppressed = list[Finding](), list[Suppressed]()
        for finding, is_new in self._new(found):
            how = self._suppressed_by(finding, ignored) or (None if is_new else "baseline")
            if how is None:
                kept.append(finding)
            else:
                suppressed.append(Suppressed(finding, how))
        if about.failure is not None:
            return Checked(target.name, tuple(kept), tuple(suppressed), place=about.place)
        self.subjects.append(about)
        return Checked(
            target.name,
            tuple(kept),
            tuple(suppressed),
            measured(about),
            about.place,
            growth=grown(about),
            parts=parts(about.graph),
            how=how_looked_at(about, target.spec.mode),
            min_bytes=about.options.min_bytes,
        )

    def _traced(self, target: Target) -> Subject:
        about = target.subject(self.config.options)
        if self.baseline is not None:
            about.before = self.baseline.figures.get(target.name, {})
            about.earlier = self.baseline.of(target.name, self.config.root)
        error = about.failure
        if isinstance(error, TargetError):
            raise TargetError(f"{target.name}: {error}") from error
        if error is not None and not _explained(about, self.rules):
            raise TargetError(f"{target.name} raised while tracing: {blame(error)}") from error
        if error is None and not (about.graph.inputs or about.graph.outputs):
            raise TargetError(
                f"{target.name} takes no arrays and returns none: there is nothing to look at"
            )
        return about

    def _new(self, found: Sequence[Finding]) -> Iterable[tuple[Finding, bool]]:
        if self.baseline is None:
            return [(finding, True) for finding in found]
        return self.baseline.new(found, self.config.root)

    def _suppressed_by(self, finding: Finding, ignored: set[str]) -> How | None:
        if finding.frame is not None:
            for comment in comments(finding.frame[0]):
                if comment.covers(finding):
                    self.used |= {(comment, rule) for rule in comment.rules if names(rule, finding)}
                    return "comment"
        if finding.code in self.config.ignored_at(finding.frame):
            return "path"
        return "target" if finding.code in ignored else None

    def _with_unused_comments(self, checked: list[Checked]) -> list[Checked]:
        rule = next((rule for rule in self.rules if isinstance(rule, UnusedSuppression)), None)
        if rule is None:
            return checked
        ran = {each.code for each in self.rules}
        notes = [
            finding
            for finding in rule.unused(self.subjects, self.used, ran)
            if finding.code not in self.config.ignored_at(finding.frame)
        ]
        return [
            replace(each, findings=(*each.findings, *(n for n in notes if n.target == each.name)))
            for each in checked
        ]
