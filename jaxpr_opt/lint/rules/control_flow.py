"""Loops and branches that do more than their author wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxpr_opt.boundary.loops import lacks_reverse_mode
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.frames import Frame, raised_at
from jaxpr_opt.insight.summary import stacked_bytes
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.places import Size, size_of, user_frame
from jaxpr_opt.lint.finding import Finding, Severity
from jaxpr_opt.lint.rule import Rule, register
from jaxpr_opt.lint.subject import Subject
from jaxpr_opt.reports.figures import formula_text


@register
@dataclass(frozen=True)
class WhileLoopOnADifferentiatedPath(Rule):
    """
    What: a gradient goes through a `lax.while_loop`, or a `lax.fori_loop` whose bounds are unknown
    when it is traced; JAX cannot transpose it.

    Why: the backward pass needs what each step has computed, and the number of steps is unknown
    before the loop runs, so JAX cannot allocate an array for it. Forward mode (`jax.jvp`,
    `jax.jacfwd`) works. The gradient of a fixed point or a root needs no steps: `lax.custom_root`,
    or a `jax.custom_vjp`.

    Example::

        def loss(x):
            def newton(y):
                return y - (y * y - x) / (2 * y)

            return lax.while_loop(lambda y: abs(y * y - x) > 1e-3, newton, x)

    Instead::

        @optimize  # keeps carries of some steps, and computes the others again
        def loss(x):
            def newton(y):
                return y - (y * y - x) / (2 * y)

            return lax.while_loop(lambda y: abs(y * y - x) > 1e-3, newton, x)

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
        if error is not None and lacks_reverse_mode(error):
            yield self.finding(
                subject,
                says="a gradient goes through a `while_loop`, or a `fori_loop` with dynamic bounds,"
                " which JAX cannot transpose",
                reason="a gradient stores values of each step, and how many steps there are is"
                " unknown before the loop runs",
                fix="differentiate `jaxpr_opt.optimize` of the function, which stores the carries"
                " of some steps and recomputes the others; for a root, `lax.custom_root`; or use"
                " forward mode, `jax.jvp`",
                frame=raised_at(error),
            )


@register
@dataclass(frozen=True)
class PredicateThatVmapTurnedIntoASelectOfLargeArrays(Rule):
    """
    What: `vmap` has turned a `cond` into a `select`, and copied what its branches read from
    outside, such as weights, for each row of the batch.

    Why: with one predicate a row, both branches are computed for all rows. The operands are also
    selected row by row, so that the branch not taken cannot spoil a gradient: for that each row
    gets its own copy. A product with a shared matrix becomes one product a row.

    Example::

        def loss(w, hs, lengths):
            def run(h, length):
                def step(h, t):
                    return lax.cond(t < length, lambda h: jnp.tanh(h @ w), lambda h: h, h), None

                return lax.scan(step, h, jnp.arange(64))[0]

            return jnp.sum(jax.vmap(run)(hs, lengths))

    Instead::

        def loss(w, hs, lengths):
            def step(hs, t):
                return jnp.where((t < lengths)[:, None], jnp.tanh(hs @ w), hs), None

            return jnp.sum(lax.scan(step, hs, jnp.arange(64))[0])

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
        if copies and 2 * stacked_bytes(subject.optimized) < stacked_bytes(subject.graph):
            fix = f"`optimize` does not store the copies; to avoid them, {fix}"
        for frame, sizes in copies.items():
            largest = max(sizes, key=lambda size: size.total)
            if subject.is_worth(sum(size.total for size in sizes)):
                yield self.finding(
                    subject,
                    says="`vmap` turns this `cond` into a select, and copies what its branches"
                    f" read for each row of the batch: {largest.shape}",
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

    Why: each is an operation of its own in every step, forward and backward, and on a CPU a step of
    a small loop costs the time to start its operations. It matters only in loops of many short
    steps, so the rule is off by default.

    Example::

        def loss(rates, xs):
            def step(nodes, x):
                return {k: v + rates[0] * jnp.tanh(x - v) for k, v in nodes.items()}, None

            init = {f"node{i}": jnp.zeros(()) for i in range(40)}
            return sum(lax.scan(step, init, xs)[0].values())

    Instead::

        def loss(rates, xs):
            def step(nodes, x):
                return nodes + rates[0] * jnp.tanh(x - nodes), None

            return jnp.sum(lax.scan(step, jnp.zeros(40), xs)[0])

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
            if cost_model().is_too_many_scalars(len(scalars)):
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
