"""Loops that take all their steps though they are done before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.engine import registry
from jaxpr_opt.frames import Frame
from jaxpr_opt.ir.graph import Cond, Region, Scan
from jaxpr_opt.ir.nesting import with_parents
from jaxpr_opt.ir.places import Size, lengths_around, user_frame
from jaxpr_opt.ir.traits import is_broadcast
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.rule import Rule, register
from jaxpr_opt.lint.subject import Subject
from jaxpr_opt.reports.figures import formula_text
from jaxpr_opt.sizes import bytes_text

EARLY = "exit-loop-early"


@register
@dataclass(frozen=True)
class LoopCouldStopEarly(Rule):
    """
    What: a scan is done at a step that its data decide, and still runs all its steps.

    Why: a `cond` skips what a step computes, not what it stores: in the gradient, each step that
    does nothing still stores the residuals of one that does something, and the backward loop reads
    them. Under `vmap` it computes the step as well. Time and memory grow with the bound, not with
    the steps taken.

    Example::

        def loss(w, x, steps):
            def step(carry, _):
                def go(carry):
                    x, i = carry
                    return jnp.tanh(x @ w), i + 1

                return lax.cond(carry[1] < steps, go, lambda c: c, carry), None

            (x, _), _ = lax.scan(step, (x, 0), None, length=1024)
            return jnp.sum(x)

    Instead::

        @optimize  # costs the steps that are taken
        def loss(w, x, steps):
            def step(carry, _):
                def go(carry):
                    x, i = carry
                    return jnp.tanh(x @ w), i + 1

                return lax.cond(carry[1] < steps, go, lambda c: c, carry), None

            (x, _), _ = lax.scan(step, (x, 0), None, length=1024)
            return jnp.sum(x)

        # or by hand: lax.scan(jax.checkpoint(step), ...), which stores inputs of steps only;
        # lax.while_loop, where nothing is differentiated

    Thread: https://github.com/jax-ml/jax/issues/8239
    """

    code: ClassVar[str] = "JXO301"
    name: ClassVar[str] = "loop-could-stop-early"

    def check(self, subject: Subject) -> Iterator[Finding]:
        instead = (
            "put `jax.checkpoint` on the step, or use `lax.while_loop` where nothing is"
            " differentiated"
        )
        for frame, loop in stopping(subject).items():
            left = f"; `optimize` does not change it: {loop.refusal}" if loop.refusal else ""
            yield self.finding(
                subject,
                says=f"all {loop.steps:,} steps run, though the loop may be done earlier",
                reason=f"a step that does nothing still makes {bytes_text(loop.idle.nbytes)}{left}",
                fix=instead if loop.refusal else f"`optimize` does it ({EARLY}); or {instead}",
                frame=frame,
                bytes=loop.idle.total,
                formula=formula_text(loop.idle.nbytes, loop.idle.lengths),
                fixed_by="" if loop.refusal else EARLY,
            )


@dataclass(frozen=True, slots=True)
class Stopping:
    """A loop, or a nest of loops in one line, that stops for good."""

    idle: Size
    """What a step makes that is not taken; in a nest, a step of the outermost loop."""
    steps: int
    """At most so many are taken."""
    refusal: str
    """Why `optimize` does not stop it early; empty if it does."""


def stopping(subject: Subject) -> dict[Frame | None, Stopping]:
    """The loops that are worth stopping early, by line."""
    found: dict[Frame | None, Stopping] = {}
    places = _early_places(subject)
    for op in subject.graph.walk():
        if isinstance(op, Scan) and (frame := user_frame(op)) in places and _stops(op):
            known = found.get(frame)
            found[frame] = Stopping(
                max(_idle(op), known.idle if known else _idle(op), key=lambda size: size.total),
                max(_steps(op), known.steps if known else 0),
                places[frame],
            )
    return {frame: loop for frame, loop in found.items() if subject.is_worth(loop.idle.total)}


def _early_places(subject: Subject) -> dict[Frame | None, str]:
    """The lines of loops that the pass has found, with why it did not stop them early, if so."""
    found: dict[Frame | None, str] = {}
    for each in subject.report.passes:
        if each.name == EARLY:
            found.update((place.frame, place.reason) for place in each.refused)
            found.update((place.frame, "") for place in each.done)
    return found


def _stops(scan: Scan) -> bool:
    """Whether a loop whose step does nothing does nothing from then on."""
    matches = registry.named(EARLY).find(scan)
    return any(isinstance(each.skip, Skip) and each.skip.kind == "carried" for each in matches)


def _steps(scan: Scan) -> int:
    """How many steps the loops take that are written in one line, a scan being the innermost."""
    loops = (op for op in with_parents(scan) if isinstance(op, Scan))
    return prod(op.length for op in loops if user_frame(op) == user_frame(scan))


def _idle(scan: Scan) -> Size:
    """The bytes that the steps of a scan make, whether or not they are skipped.

    A step that stores what it starts from, as one under a checkpoint does, stores the least it can.
    """
    stored = sum(stack.value.nbytes for stack in scan.stacks if stack.value.op is not None)
    return Size("", stored + _computed(scan.body), lengths_around(scan.body))


def _computed(region: Region) -> int:
    """Bytes that the ops of a region make outside of branches."""
    total = 0
    for op in region.ops:
        if isinstance(op, Scan):
            total += op.length * _computed(op.body)
        elif op.regions:
            total += 0 if isinstance(op, Cond) else sum(map(_computed, op.regions))
        elif not is_broadcast(op):
            total += sum(result.nbytes for result in op.results)
    return total
