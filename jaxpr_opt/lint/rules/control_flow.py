"""Loops and branches that do more than their author wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxpr_opt import registry
from jaxpr_opt.analysis.skips import Skip
from jaxpr_opt.analysis.summary import residual_bytes
from jaxpr_opt.figures import bytes_text, formula_text
from jaxpr_opt.frames import Frame, raised_at
from jaxpr_opt.ir import Cond, Op, Region, Scan, Value
from jaxpr_opt.journal import Size, lengths_around, size_of
from jaxpr_opt.lint.finding import Finding, Severity
from jaxpr_opt.lint.rule import Rule, register
from jaxpr_opt.lint.subject import Subject
from jaxpr_opt.pipeline import user_frame
from jaxpr_opt.traits import spreads

EARLY = "exit-loop-early"
MANY_SCALARS = 32
"""Scalars carried one by one: with 64 of them the gradient of jax#40150 took five times as long as
with one array."""


@register
@dataclass(frozen=True)
class LoopCouldStopEarly(Rule):
    """
    What: a scan stops for good at a step that its data decide, and takes all its steps regardless.

    Why: a `cond` leaves out what a step computes, not what it stores: in the gradient each step
    that does nothing still makes the residuals of one that does something, and the backward loop
    reads them.  Under `vmap` it computes the step as well.  Time and memory go with the bound, not
    with the steps taken.

    Example::

        def step(state, _):
            return lax.cond(go_on(state), body, lambda s: s, state), None

        jax.grad(lambda x: loss(lax.scan(step, x, None, length=4096)[0]))

    Instead::

        jax.grad(optimize(lambda x: ...))  # costs the steps that are taken

        lax.scan(jax.checkpoint(step), x, None, length=4096)  # stores inputs of steps only

        lax.while_loop(go_on, body, x)  # where nothing is differentiated

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
            left = f"; `optimize` leaves it: {loop.refusal}" if loop.refusal else ""
            yield self.finding(
                subject,
                says=f"all {loop.steps:,} steps are taken, though the loop may be done before",
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
    steps, around = scan.length, scan.parent
    while around is not None:
        if isinstance(around, Scan) and user_frame(around) == user_frame(scan):
            steps *= around.length
        around = around.parent
    return steps


def _idle(scan: Scan) -> Size:
    """What the steps of a scan make, whether or not they are skipped.

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
        elif not spreads(op):
            total += sum(result.nbytes for result in op.results)
    return total


@register
@dataclass(frozen=True)
class WhileLoopOnADifferentiatedPath(Rule):
    """
    What: a gradient goes through a `lax.while_loop`, or a `lax.fori_loop` whose bounds are not
    known when it is traced; JAX cannot transpose it.

    Why: the backward pass needs what each step has computed, and a `while` takes nobody knows how
    many steps: there is no array to keep it in.  Forward mode (`jax.jvp`, `jax.jacfwd`) works.  Of
    a fixed point or a root the gradient is known without the steps: `lax.custom_root`, or a
    `jax.custom_vjp`.

    Example::

        def solve(x):
            return lax.while_loop(lambda y: error(x, y) > tol, lambda y: newton(x, y), x)

        jax.grad(solve)

    Instead::

        def solve(x):  # at most 64 steps
            step = lambda y, _: (lax.cond(error(x, y) > tol, newton, lambda x, y: y, x, y), None)
            return lax.scan(step, x, None, length=64)[0]

        jax.grad(optimize(solve))  # costs the steps that are taken

    Thread: https://github.com/jax-ml/jax/issues/2129,
    https://github.com/google-deepmind/mujoco/issues/2259, https://github.com/google/brax/issues/290
    """

    code: ClassVar[str] = "JXO302"
    name: ClassVar[str] = "while-loop-on-a-differentiated-path"
    severity: ClassVar[Severity] = "error"

    def check(self, subject: Subject) -> Iterator[Finding]:
        """Nothing: a program that has it cannot be traced."""
        del subject
        yield from ()

    def explain(self, subject: Subject) -> Iterator[Finding]:
        error = subject.failure
        if error is not None and "Reverse-mode differentiation does not work" in str(error):
            yield self.finding(
                subject,
                says="a gradient goes through a `while_loop`, or a `fori_loop` with dynamic bounds,"
                " which JAX cannot transpose",
                reason="what its steps compute would have to be kept, and their number is unknown",
                fix="use a `lax.scan` over at most so many steps, with a `lax.cond` in the step"
                " (`optimize` stops it early); `lax.custom_root` for a root; or `jax.jvp`",
                frame=raised_at(error),
            )


@register
@dataclass(frozen=True)
class PredicateThatVmapTurnedIntoASelectOfLargeArrays(Rule):
    """
    What: `vmap` has turned a `cond` into a `select`, and copied what its branches read from
    outside, weights say, once for each row of the batch.

    Why: with one predicate a row both branches are computed for all rows, and so that the branch
    not taken cannot spoil a gradient, what goes into it is chosen row by row: for that each row
    gets its own copy.  Products with a shared matrix become one product a row.

    Example::

        def step(h, t, length):
            return lax.cond(t < length, lambda h: jnp.tanh(h @ w), lambda h: h, h)

        jax.vmap(step, (0, None, 0))(hs, t, lengths)

    Instead::

        def step(hs, t, lengths):
            return jnp.where((t < lengths)[:, None], jnp.tanh(hs @ w), hs)

    Thread: https://github.com/jax-ml/jax/issues/8409, https://github.com/jax-ml/jax/issues/7934
    """

    code: ClassVar[str] = "JXO303"
    name: ClassVar[str] = "predicate-that-vmap-turned-into-a-select-of-large-arrays"
    subsumes: ClassVar[frozenset[str]] = frozenset({"JXO101", "JXO103", "JXO104"})

    def check(self, subject: Subject) -> Iterator[Finding]:
        copies: dict[Frame | None, list[Size]] = {}
        for op in subject.graph.walk():
            if _guards_a_copy(op):
                copies.setdefault(user_frame(op), []).append(size_of(op.result))
        fix = (
            "compute the branch for the whole batch, and choose its results:"
            " `jnp.where(p, new, old)`"
        )
        if copies and 2 * residual_bytes(subject.optimized) < residual_bytes(subject.graph):
            fix = f"`optimize` keeps the copies from being stored; to have none, {fix}"
        for frame, sizes in copies.items():
            largest = max(sizes, key=lambda size: size.total)
            if subject.is_worth(sum(size.total for size in sizes)):
                yield self.finding(
                    subject,
                    says=f"`vmap` makes this `cond` a select, and a {largest.shape} of what its"
                    " branches read: one copy for each row of the batch",
                    reason="with one predicate a row, both branches are computed for every row",
                    fix=fix,
                    frame=frame,
                    shape=largest.shape,
                    bytes=sum(size.total for size in sizes),
                    formula=formula_text(largest.nbytes, largest.lengths),
                )


def _guards_a_copy(op: Op) -> bool:
    """Whether an op chooses between an array and the same without gradient, as JAX does for what a
    batched branch reads, and the array is one that was repeated for the batch.
    """
    if op.name != "select_n" or len(op.operands) != 3:
        return False
    for guarded, array in (op.operands[1:], op.operands[:0:-1]):
        if guarded.op is not None and guarded.op.name == "stop_gradient":
            return guarded.op.operands[0] is array and _is_repeated(array)
    return False


def _is_repeated(array: Value) -> bool:
    maker = array.op
    if maker is None or maker.name != "broadcast_in_dim":
        return False
    return 1 < maker.operands[0].nbytes < array.nbytes and bool(maker.operands[0].shape)


@register
@dataclass(frozen=True)
class ManyScalarCarries(Rule):
    """
    What: a scan carries many scalars one by one.

    Why: each is an operation of its own in every step, forward and backward; on CPU the step of a
    small loop costs what its operations cost to start.  It matters in loops of many short steps
    only, so the rule is off by default.

    Example::

        init = {name: jnp.zeros(()) for name in names}
        lax.scan(lambda c, x: ({k: f(v, x) for k, v in c.items()}, None), init, xs)

    Instead::

        init = jnp.zeros(len(names))
        lax.scan(lambda c, x: (f(c, x), None), init, xs)

    Thread: https://github.com/jax-ml/jax/issues/40150
    """

    code: ClassVar[str] = "JXO304"
    name: ClassVar[str] = "many-scalar-carries"
    default: ClassVar[bool] = False

    def check(self, subject: Subject) -> Iterator[Finding]:
        for op in subject.graph.walk():
            if not isinstance(op, Scan) or op.source.transposed:
                continue
            scalars = [c for c in op.carries if c.param.shape == () and _is_float(c.param)]
            if len(scalars) >= MANY_SCALARS:
                yield self.finding(
                    subject,
                    says=f"{len(scalars)} scalars are carried one by one through {op.length:,}"
                    " steps",
                    reason="each is an operation of its own in every step, and several in the"
                    " gradient's",
                    fix="carry one array of them",
                    frame=user_frame(op),
                )


def _is_float(value: Value) -> bool:
    return isinstance(value.dtype, np.dtype) and value.dtype.kind == "f"
