"""Checkpoints that do not do what they were written for, and what would be worth one."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

from jaxpr_opt.bridge.parameters import label_of, policy_of
from jaxpr_opt.cost.ops import cost
from jaxpr_opt.frames import Frame
from jaxpr_opt.ir.graph import Op, Remat, Scan, While
from jaxpr_opt.ir.nesting import with_parents
from jaxpr_opt.ir.places import user_frame
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.rule import Rule, register
from jaxpr_opt.lint.subject import Subject
from jaxpr_opt.reports.figures import formula_text

ALL_OF_IT = 0.9
"""A checkpoint that does so much of the work of the one around it makes that one superfluous."""


@register
@dataclass(frozen=True)
class PolicyNamesNothing(Rule):
    """
    What: the policy of a checkpoint selects values by name, and no value of the program has one of
    these names.

    Why: a name that is misspelt, or that the library has changed, is no error: the policy has no
    effect for it. What was to be saved is recomputed, or what was to be recomputed is saved,
    without a warning.

    Example::

        policy = jax.checkpoint_policies.save_only_these_names("attention")
        block = jax.checkpoint(block, policy=policy)    # block: checkpoint_name(x, "attn")

    Instead::

        policy = jax.checkpoint_policies.save_only_these_names("attn")

    Thread: https://github.com/AI-Hypercomputer/maxtext/issues/4990
    """

    code: ClassVar[str] = "JXO401"
    name: ClassVar[str] = "policy-names-nothing"

    def check(self, subject: Subject) -> Iterator[Finding]:
        ops = list(subject.graph.walk())
        known = dict.fromkeys(label_of(op) for op in ops if op.name == "name")
        for op in ops:
            named = _named_by(policy_of(op)) if isinstance(op, Remat) else {}
            if named and known.keys().isdisjoint(named):
                yield self._finding(subject, op, list(named), list(known))

    def _finding(self, subject: Subject, op: Op, named: list[str], known: list[str]) -> Finding:
        close = [match for name in named for match in get_close_matches(name, known, n=1)]
        there = (
            f"values are named {', '.join(map(repr, known))}" if known else "no value has a name"
        )
        return self.finding(
            subject,
            says=f"the policy of this checkpoint names {', '.join(map(repr, named))}, and no value"
            " of the program has that name",
            reason=f"{there}, so the policy has no effect for that name",
            fix=f"did you mean {close[0]!r}?"
            if close
            else "write `checkpoint_name(x, name)` where the value is made",
            frame=user_frame(op),
        )


def _named_by(policy: Any) -> dict[str, None]:
    """The names that policies of JAX are made with, also those within others.

    JAX has no way to ask: some are objects with their names in attributes, others functions that
    enclose them.
    """
    found: dict[str, None] = {}
    pending, seen = [policy], set[int]()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, set | frozenset | tuple | list):
            found |= dict.fromkeys(name for name in each if isinstance(name, str))
        elif callable(each) and _is_of_jax(each):
            cells = getattr(each, "__closure__", None) or ()
            attributes = getattr(each, "__dict__", {})
            pending += [cell.cell_contents for cell in cells] + list(attributes.values())
    return dict.fromkeys(sorted(found))


def _is_of_jax(policy: Any) -> bool:
    if isinstance(policy, functools.partial):
        return _is_of_jax(policy.func)
    return str(getattr(policy, "__module__", "")).partition(".")[0] == "jax"


@register
@dataclass(frozen=True)
class CheckpointInACheckpoint(Rule):
    """
    What: a checkpoint does nearly all the work of the checkpoint around it, with no loop between
    them.

    Why: the backward pass replays the outer checkpoint, which stores the inputs of the inner one,
    and then replays the inner one: the work is done once more, and nothing less is stored.

    Example::

        layer = jax.checkpoint(layer)
        ...
        def block(x):
            return layer(x)

        block = jax.checkpoint(block)

    Instead::

        one of them

    Thread: https://github.com/jax-ml/jax/issues/21303
    """

    code: ClassVar[str] = "JXO402"
    name: ClassVar[str] = "checkpoint-in-a-checkpoint"

    def check(self, subject: Subject) -> Iterator[Finding]:
        times: dict[Frame | None, int] = {}
        for op in subject.graph.walk():
            if isinstance(op, Remat) and (around := _superfluous(op)):
                frame = user_frame(op)
                times[frame] = max(times.get(frame, 0), 2 + around)
        for frame, count in times.items():
            yield self.finding(
                subject,
                says=f"a gradient computes what is in this checkpoint {count} times",
                reason="it does the work of the checkpoint around it, which is replayed as well",
                fix="remove one of the checkpoints",
                frame=frame,
            )


def _superfluous(inner: Remat) -> int:
    """How many checkpoints around this one do little else than it does."""
    count, own = 0, cost(inner).flops
    for around in with_parents(inner.parent):
        if isinstance(around, Scan | While):
            break
        if isinstance(around, Remat):
            whole = cost(around).flops
            if own is None or whole is None or not 0 < ALL_OF_IT * whole <= own:
                break
            count += 1
    return count


@register
@dataclass(frozen=True)
class ResidualCheaperToRecompute(Rule):
    """
    What: a loop stores in every step a value that a few elementwise operations make of smaller
    values, or of others that are stored.

    Why: writing a value to memory and reading it back takes longer than recomputing it from values
    that are read anyway: a broadcast mask, one minus the square of a tanh.

    Example::

        jax.grad(lambda h: lax.scan(lambda h, x: (jnp.where(x > 0, jnp.tanh(h), h), None), h, xs))

    Instead::

        jax.grad(optimize(lambda h: ...))

    By hand: `jax.checkpoint` around the elementwise part of the step.

    Thread: https://github.com/jax-ml/jax/issues/12417
    """

    code: ClassVar[str] = "JXO403"
    name: ClassVar[str] = "residual-cheaper-to-recompute"
    default: ClassVar[bool] = False
    severity: ClassVar = "note"

    def check(self, subject: Subject) -> Iterator[Finding]:
        for report in subject.report.passes:
            if report.name != NARROW:
                continue
            for place in report.done:
                size = place.size
                if size is not None and subject.is_worth(size.total):
                    yield self.finding(
                        subject,
                        says=place.says,
                        reason="storing and reading it takes longer than computing it again",
                        fix=f"`optimize` does it ({NARROW}); or write `jax.checkpoint` around it",
                        frame=place.frame,
                        shape=size.shape,
                        bytes=size.total,
                        formula=formula_text(size.nbytes, size.lengths),
                        fixed_by=NARROW,
                    )


NARROW = "narrow-residuals"
