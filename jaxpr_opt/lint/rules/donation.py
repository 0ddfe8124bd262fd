"""Arguments that could be results, and donation that does nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.bridge import compat_call
from jaxpr_opt.donation.plan import Argument, donation
from jaxpr_opt.donation.strict import unusable
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.rule import Rule, register
from jaxpr_opt.lint.subject import Subject
from jaxpr_opt.sizes import bytes_text


@register
@dataclass(frozen=True)
class ArgumentCouldBeDonated(Rule):
    """
    What: a training step makes new versions of large arguments, and does not donate the old ones.

    The rule runs only in mode `train-step`, which says that the caller gives up what the step
    replaces.

    Why: the caller keeps an argument, so the state is in memory twice while a step runs: the old
    version and the new. A donated argument is updated in place.

    Example::

        step = jax.jit(train_step)
        params, state = step(params, state, batch)

    Instead::

        step = jax.jit(train_step, donate_argnums=(0, 1))

        step = jaxpr_opt.optimize(train_step, donate="matched")   # what can be used, array by array

    Thread: https://github.com/jax-ml/jax/issues/1733
    """

    code: ClassVar[str] = "JXO501"
    name: ClassVar[str] = "argument-could-be-donated"

    def check(self, subject: Subject) -> Iterator[Finding]:
        if subject.mode != "train-step" or subject.donating is not None:
            return
        donated = subject.donated
        possible = donation(subject.graph, [i for i, each in enumerate(donated) if not each])
        found = [each for each in possible.donated if each.kind != "moved"]
        size = sum(each.nbytes for each in found)
        if not subject.is_worth(size):
            return
        names = list(dict.fromkeys(each.root for each in found))
        some = f"`{found[0].path}`" if len(found) == 1 else f"{len(found)} arrays"
        yield self.finding(
            subject,
            says=f"{some} of {_listed(names)} could be donated",
            reason=f"their new versions take another {bytes_text(size)} beside the old ones",
            fix='`donate="matched"`, or `donate_argnums` where the whole argument is replaced',
            frame=subject.place,
            shape=_largest(found).type,
            bytes=size,
        )


@register
@dataclass(frozen=True)
class DonatedButUnusable(Rule):
    """
    What: an argument is donated whose memory no result can take.

    Why: JAX warns of it once, if at all: it does not if a result of another width could have taken
    the memory. The expected memory is not saved, and nobody notices until it runs out.

    Example::

        step = jax.jit(train_step, donate_argnums=(0, 1, 2))   # no result is like the batch

    Instead::

        step = jax.jit(train_step, donate_argnums=(0, 1))

        step = jaxpr_opt.optimize(train_step, donate_argnums=(0, 1))   # an error if it is unusable

    Thread: https://github.com/jax-ml/jax/issues/9675
    """

    code: ClassVar[str] = "JXO502"
    name: ClassVar[str] = "donated-but-unusable"

    def check(self, subject: Subject) -> Iterator[Finding]:
        donated = subject.donated
        if not any(donated):
            return
        graph = subject.graph
        arguments = donation(graph).arguments
        inputs, outputs = ([v.aval for v in values] for values in (graph.inputs, graph.outputs))
        for i, reason in unusable(inputs, donated, outputs):
            each = arguments[i]
            if subject.is_worth(each.nbytes):
                yield self.finding(
                    subject,
                    says=f"`{each.path}` is donated, but no result can take its memory",
                    reason=reason,
                    fix="do not donate it, or return its next version in the same shape and dtype",
                    frame=subject.place,
                    shape=each.type,
                    bytes=each.nbytes,
                )


@register
@dataclass(frozen=True)
class ReturnedArgument(Rule):
    """
    What: a jitted function returns a large argument unchanged, and does not donate it.

    Why: results of a compiled function have memory of their own, so every call copies the argument.
    A donated argument is passed through.

    Example::

        @jax.jit
        def step(params, frozen, batch):
            return update(params, frozen, batch), frozen

    Instead::

        @jax.jit
        def step(params, frozen, batch):
            return update(params, frozen, batch)      # the caller has it

        @functools.partial(jax.jit, donate_argnums=1)
        def step(params, frozen, batch):
            return update(params, frozen, batch), frozen

    Thread: https://github.com/jax-ml/jax/issues/926
    """

    code: ClassVar[str] = "JXO503"
    name: ClassVar[str] = "returned-argument"

    def check(self, subject: Subject) -> Iterator[Finding]:
        is_jitted = compat_call.jit_options(subject.function) is not None
        if subject.mode == "gradient" or not (is_jitted or subject.mode == "train-step"):
            return
        if subject.donating is not None:
            return
        donated = subject.donated
        possible = donation(subject.graph, [i for i, each in enumerate(donated) if not each])
        for each in possible.donated:
            if each.kind == "moved" and subject.is_worth(each.nbytes):
                yield self.finding(
                    subject,
                    says=f"`{each.path}` is returned unchanged, which copies it",
                    reason="results of a compiled function have memory of their own",
                    fix="do not return it, as the caller has it; or donate it",
                    frame=subject.place,
                    shape=each.type,
                    bytes=each.nbytes,
                )


def _largest(arguments: Sequence[Argument]) -> Argument:
    return max(arguments, key=lambda each: each.nbytes)


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
