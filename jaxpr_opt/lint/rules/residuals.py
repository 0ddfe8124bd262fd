"""Rules about values that a loop stores in every step for its gradient, and need not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.frames import Frame
from jaxpr_opt.insight.causes import Cause, Why, cause
from jaxpr_opt.insight.saved import Saved
from jaxpr_opt.ir.places import user_frame
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.rule import Rule, register
from jaxpr_opt.lint.rules.stopping import stopping
from jaxpr_opt.lint.subject import Subject
from jaxpr_opt.reports.figures import formula_text
from jaxpr_opt.reports.residual_rows import Key, argument_names, key

FROM_OUTSIDE = ("drop-dummy-residuals", "forward-known-stacks", "hoist-invariant-residuals")
"""The passes that let the transpose read what is not made in the loop."""


@dataclass(frozen=True, slots=True)
class Excess:
    """Values of one line that a loop stores in every step, and why that is more than is needed."""

    key: Key
    facts: tuple[Saved, ...]
    cause: Cause
    name: str
    """What its author calls it, with its type."""
    frame: Frame | None
    """Where the value is made; of an argument, the loop that stores it."""
    left: int
    """Bytes of it that the optimised program keeps."""

    @property
    def bytes(self) -> int:
        return sum(fact.nbytes for fact in self.facts)

    @property
    def is_fixed(self) -> bool:
        """Whether optimising takes off most of it."""
        return 2 * self.left <= self.bytes

    @property
    def steps(self) -> str:
        """`each of 4000 steps`"""
        return f"each of {' x '.join(f'{n:,}' for n in self.facts[0].lengths)} steps"


def excess(subject: Subject, *why: Why) -> Iterator[Excess]:
    """The residuals that are stored for one of these reasons and are large enough for a finding."""
    groups: dict[Key, list[Saved]] = {}
    names = argument_names(subject.graph)
    for fact in subject.saved:
        if fact.lengths:
            groups.setdefault(key(fact.made), []).append(fact)
    for which, facts in groups.items():
        if subject.is_worth(sum(fact.nbytes for fact in facts)):
            found = cause(facts[0])
            if found is not None and found.why in why:
                name = names.get(found.of) or names.get(facts[0].made) or which.name
                yield Excess(
                    which,
                    tuple(facts),
                    found,
                    f"{name} {which.shape}",
                    which.frame or user_frame(found.loop),
                    subject.left.get(which, 0),
                )


class _StoredInVain(Rule):
    """A residual with a cause, and the passes that remove it."""

    why: ClassVar[Why]
    passes: ClassVar[tuple[str, ...]]
    """Those that can, the likeliest first."""

    def found(
        self, subject: Subject, each: Excess, says: str, reason: str, instead: str
    ) -> Finding:
        by = self._fixed_by(subject, each) if each.is_fixed else ""
        nbytes, times = each.facts[0].made.nbytes, list(each.facts[0].lengths)
        count = len(each.facts)
        return self.finding(
            subject,
            says=says,
            reason=reason,
            fix=f"`optimize` does it ({by}); or {instead}" if by else instead,
            frame=each.frame,
            shape=each.key.shape,
            bytes=each.bytes,
            formula=formula_text(nbytes, times + [count] * (count > 1)),
            fixed_by=by,
        )

    def _fixed_by(self, subject: Subject, each: Excess) -> str:
        """The pass that took it off: one that did something to its loop, if one of them did."""
        places = (each.frame, user_frame(each.cause.loop))
        done = {p.name: {place.frame for place in p.done} for p in subject.report.passes if p.done}
        passes = self.passes
        if not each.cause.loop.body.defines(each.cause.of):
            passes = (*FROM_OUTSIDE, *passes)
        known = [name for name in passes if name in done]
        near = [name for name in known if not done[name].isdisjoint(places)]
        return (near or known or [""])[0]


@register
@dataclass(frozen=True)
class StackedLoopInvariant(_StoredInVain):
    """
    What: a value that is the same in every step of a loop is stored in every step.

    Why: JAX stores what the backward pass reads, one row a step, and does not see that all rows
    are the same.  A value computed from weights alone takes as many times the memory as the
    loop has steps.

    Example::

        def step(h, x):
            return jnp.tanh(h @ normalised(w) + x), None

        lax.scan(step, h, xs)

    Instead::

        v = normalised(w)

        def step(h, x):
            return jnp.tanh(h @ v + x), None

        lax.scan(step, h, xs)

    Thread: https://github.com/AI-Hypercomputer/maxtext/issues/4405
    """

    code: ClassVar[str] = "JXO101"
    name: ClassVar[str] = "stacked-loop-invariant"
    passes: ClassVar = ("hoist-invariant-residuals", "narrow-residuals")

    def check(self, subject: Subject) -> Iterator[Finding]:
        for each in excess(subject, "invariant"):
            yield self.found(
                subject,
                each,
                f"{each.name} is the same in {each.steps}, and stored in each",
                "JAX stores a row a step for the backward pass, and all rows are the same",
                "compute it before the loop, and use it in the step",
            )


@register
@dataclass(frozen=True)
class DummyOfAnUntakenBranch(_StoredInVain):
    """
    What: a loop stores what a branch computes, and a dummy in every step that does not take it.

    Why: a `cond` stores the residuals of all its branches, whichever is taken: the memory of a
    loop that may take 4096 steps and takes 8 is that of 4096, weights included on older versions
    of JAX.

    Example::

        def step(state, _):
            return lax.cond(go_on(state), body, lambda s: s, state), None

        jax.grad(lambda x: loss(lax.scan(step, x, None, length=4096)[0]))

    Instead::

        lax.scan(jax.checkpoint(step), x, None, length=4096)

    That stores what each step starts from, in untaken steps too.

    Thread: https://github.com/jax-ml/jax/issues/8239
    """

    code: ClassVar[str] = "JXO102"
    name: ClassVar[str] = "dummy-of-an-untaken-branch"
    passes: ClassVar = (
        "replay-steps", "isolate-skipped-steps", "narrow-residuals", "push-remat-into-branches",
        "fuse-branches",
    )  # fmt: skip

    def check(self, subject: Subject) -> Iterator[Finding]:
        reported = stopping(subject)  # a loop that stops for good is reported once: where it is
        for each in excess(subject, "dummy"):
            if each.is_fixed and user_frame(each.cause.loop) not in reported:
                yield self.found(
                    subject,
                    each,
                    f"{each.name} is stored in {each.steps}, as a dummy where"
                    " its branch is not taken",
                    "a `cond` stores the residuals of all its branches, taken or not",
                    "write `jax.checkpoint` around the step",
                )


@register
@dataclass(frozen=True)
class RepeatsAnInputOrAStream(_StoredInVain):
    """
    What: a loop stores in every step an argument of the program, or the row of an array that it
    reads row by row.

    Why: the value is in memory already. JAX stores a second copy of the array, or as many copies of
    the argument as the loop has steps.

    Example::

        def step(h, x):
            return lax.cond(x[0] > 0, lambda h: jnp.tanh(w @ h * x), lambda h: h, h), None

        lax.scan(step, h, xs)      # w and x are stored again

    Instead::

        lax.scan(jax.checkpoint(step), h, xs)

    Thread: https://github.com/jax-ml/jax/issues/8239
    """

    code: ClassVar[str] = "JXO103"
    name: ClassVar[str] = "repeats-an-input-or-a-stream"
    passes: ClassVar = ("narrow-residuals",)

    def check(self, subject: Subject) -> Iterator[Finding]:
        for each in excess(subject, "input", "stream"):
            is_row = each.cause.why == "stream"
            what = "is a row of an array the loop reads" if is_row else "comes from outside"
            yield self.found(
                subject,
                each,
                f"{each.name} {what}, and is stored again in {each.steps}",
                "the backward pass could read the array itself",
                "write `jax.checkpoint` around the step",
            )


@register
@dataclass(frozen=True)
class WholeBufferStoredPerStep(_StoredInVain):
    """
    What: a loop writes to a part of an array that it carries, and stores the whole array in every
    step for its gradient.

    Why: the gradient of a step that reads the whole array needs the array of that step.  A loop
    over n rows of a table of n rows stores n tables: memory grows with the square.

    Example::

        def step(carry, i):
            x, cache = carry
            cache = cache.at[i].set(x)
            return (jnp.tanh(cache.T @ (cache @ x)), cache), None

    Instead::

        step = jax.checkpoint(step)      # stores the cache still, but nothing made of it

    or a `jax.custom_vjp` that keeps the last version of the array.

    Thread: https://github.com/jax-ml/jax/issues/10197
    """

    code: ClassVar[str] = "JXO104"
    name: ClassVar[str] = "whole-buffer-stored-per-step"
    subsumes: ClassVar[frozenset[str]] = frozenset({"JXO201"})
    passes: ClassVar = (
        "undo-carried-writes", "stack-carried-updates", "narrow-carried-arrays", "narrow-reads",
        "replay-steps", "narrow-residuals",
    )  # fmt: skip

    def check(self, subject: Subject) -> Iterator[Finding]:
        for each in excess(subject, "buffer"):
            yield self.found(
                subject,
                each,
                f"JAX stores the whole {each.key.shape} in {each.steps}, which each write a part",
                "a step reads the whole array, so its gradient needs the array of that step",
                "write a `jax.custom_vjp` that keeps the last version only",
            )
