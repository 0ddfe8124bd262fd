"""Rules about the comments that suppress other rules."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from jaxpr_opt.bridge import compat_source
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.rule import Rule, named, register
from jaxpr_opt.lint.subject import Subject
from jaxpr_opt.lint.suppress import Comment, comments


@register
@dataclass(frozen=True, slots=True)
class UnusedSuppression(Rule):
    """What: a comment `# jaxpr-opt: ignore[...]` that suppresses nothing.

    It is reported on lines that linted programs come from, after all targets, and only for rules
    that have run. A comment that names no rule, or an unknown one, is reported as well.

    Why: it says that something is wrong where nothing is, and it will hide the next finding.

    Example::

        x = jnp.sin(x)  # jaxpr-opt: ignore[stacked-loop-invariant]

    Instead::

        x = jnp.sin(x)

    Thread: https://docs.astral.sh/ruff/rules/unused-noqa/
    """

    code = "JXO001"
    name = "unused-suppression"
    severity = "note"

    def check(self, subject: Subject) -> Iterator[Finding]:
        """Nothing: what is suppressed is known when all rules have looked at all targets."""
        del subject
        yield from ()

    def unused(
        self, subjects: Collection[Subject], used: Collection[tuple[Comment, str]], ran: set[str]
    ) -> Iterator[Finding]:
        """The rules named in comments that have suppressed nothing."""
        for comment, subject in _reached(subjects).items():
            if not comment.rules:
                yield self._finding(
                    subject, comment, "this comment does not say what to ignore", "name the rule"
                )
            for written in comment.rules:
                if (comment, written) in used:
                    continue
                says = self._complaint(written, ran)
                if says:
                    yield self._finding(subject, comment, says, f"remove {written}")

    def _complaint(self, written: str, ran: set[str]) -> str:
        try:
            rule = named(written)
        except ValueError as error:
            return str(error)
        return f"{rule.name} reports nothing here" if rule.code in ran else ""

    def _finding(self, subject: Subject, comment: Comment, says: str, fix: str) -> Finding:
        return self.finding(
            subject,
            says=says,
            reason="a comment without effect will hide the next finding",
            fix=fix,
            frame=(comment.file, comment.line, ""),
        )


def _reached(subjects: Collection[Subject]) -> dict[Comment, Subject]:
    """The comments on statements that linted programs come from."""
    reached: dict[Comment, Subject] = {}
    for subject in subjects:
        frames = {compat_source.user_frame(op.source.info) for op in subject.graph.walk()}
        lines = {(frame[0], frame[1]) for frame in frames if frame is not None}
        for comment in [c for file in sorted({file for file, _ in lines}) for c in comments(file)]:
            if any((comment.file, n) in lines for n in range(comment.first, comment.last + 1)):
                reached.setdefault(comment, subject)
    return reached
