"""Arrays that loops carry and touch a piece at a time, and that are handled as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar

from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.frames import Frame
from jaxpr_opt.ir.graph import Op, Scan, Value, While
from jaxpr_opt.ir.nesting import with_parents
from jaxpr_opt.ir.places import user_frame
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.places import Costly, costly
from jaxpr_opt.lint.rule import Rule, register
from jaxpr_opt.lint.subject import Subject


@register
@dataclass(frozen=True)
class CarriedArrayWrittenASliceAtATime(Rule):
    """
    What: a loop carries an array, reads and writes a slice of it in each step, and XLA copies the
    whole array in each step.

    Why: XLA writes into the array in place only if no old value of it is needed after the write.
    The gradient of `ys.at[i].set(y)` always needs one: it reads a slice of the cotangent, clears
    it, and uses what it has read. A loop over n rows then moves n times n rows. If the index is not
    the number of the step, as in a ring buffer or a heap: write first, then read what the *next*
    step needs of the array, and carry that.

    Example::

        def loss(xs):
            def step(carry, i):
                state, ys = carry
                state = jnp.sin(state + xs[i])
                return (state, ys.at[i].set(state)), None

            init = jnp.zeros(()), jnp.zeros_like(xs)
            (_, ys), _ = lax.scan(step, init, jnp.arange(xs.size))
            return jnp.sum(ys**2)

    Instead::

        def loss(xs):
            def step(state, x):
                state = jnp.sin(state + x)
                return state, state

            _, ys = lax.scan(step, jnp.zeros(()), xs)
            return jnp.sum(ys**2)

    Thread: https://github.com/jax-ml/jax/issues/15906, https://github.com/jax-ml/jax/issues/10197,
    https://github.com/jax-ml/jax/issues/17640, https://github.com/jax-ml/jax/issues/17845
    """

    code: ClassVar[str] = "JXO201"
    name: ClassVar[str] = "carried-array-written-a-slice-at-a-time"

    def check(self, subject: Subject) -> Iterator[Finding]:
        for place in costly(subject, "copy"):
            yield self.finding(
                subject,
                says=f"XLA copies the whole {place.size.shape} in {place.steps}, to write a slice",
                reason=_why(
                    place,
                    "a step still uses the old slice after it has overwritten it, as the gradient"
                    " of a write does, so XLA keeps both versions",
                ),
                fix=_fix(
                    place,
                    "read slices as `xs` of the scan and return them as its `ys`"
                    if place.fixed_by in ("narrow-carried-arrays", "stack-carried-updates")
                    else "write first, then read what the next step needs, and carry that",
                ),
                **place.details,
            )


@register
@dataclass(frozen=True)
class SelectOverWholeArrayAroundAnUpdate(Rule):
    """
    What: a step writes a slice of an array, and then selects, for the whole array, between the new
    version and the old.

    Why: the select reads and writes every element, so a loop over n elements moves n times n of
    them. `vmap` of a `cond` or of a `while_loop` around a write makes such a select; so does
    `jnp.where(arange(n) == i, y, ys)`.

    Example::

        def loss(xs, stop):
            def step(ys, i):
                return jnp.where(i < stop, ys.at[i].set(jnp.sin(xs[i])), ys), None

            ys, _ = lax.scan(step, jnp.zeros_like(xs), jnp.arange(xs.size))
            return jnp.sum(ys**2)

    Instead::

        def loss(xs, stop):
            def step(_, inputs):
                i, x = inputs
                return None, jnp.where(i < stop, jnp.sin(x), 0)

            _, ys = lax.scan(step, None, (jnp.arange(xs.size), xs))
            return jnp.sum(ys**2)

        # or, where that is no stack: ys.at[i].set(jnp.where(p, y, ys[i])), in a batch
        # ys.at[rows, i].set(jnp.where(p, y, ys[rows, i]))

    Thread: https://github.com/jax-ml/jax/issues/13522, https://github.com/jax-ml/jax/issues/8192
    """

    code: ClassVar[str] = "JXO202"
    name: ClassVar[str] = "select-over-whole-array-around-an-update"
    subsumes: ClassVar[frozenset[str]] = frozenset({"JXO201"})

    def check(self, subject: Subject) -> Iterator[Finding]:
        for place in costly(subject, "select"):
            yield self.finding(
                subject,
                says=f"a select copies the whole {place.size.shape} in {place.steps}, to write a"
                " slice or not",
                reason=_why(place, "every element is read and written for the few that change"),
                fix=_fix(place, "select the slice: `ys.at[i].set(jnp.where(p, y, ys[i]))`"),
                **place.details,
            )


@register
@dataclass(frozen=True)
class DenseZerosForASparseCotangent(Rule):
    """
    What: the gradient of a slice that a loop reads is a whole array, zero but for the slice's
    cotangent, which each step makes and adds.

    Why: each step costs the array, where the cotangent is only a slice. XLA handles a dynamic slice
    or an index in a single loop, but not a static slice, a `concatenate`, or a sum of several.

    Example::

        def loss(table, xs):
            def step(state, x):
                return jnp.tanh(state * table[0] + x), None

            return lax.scan(step, jnp.zeros(()), xs)[0]

    Instead::

        def loss(table, xs):
            first = table[0]

            def step(state, x):
                return jnp.tanh(state * first + x), None

            return lax.scan(step, jnp.zeros(()), xs)[0]

    Thread: https://github.com/jax-ml/jax/issues/851, https://github.com/jax-ml/jax/pull/38915
    """

    code: ClassVar[str] = "JXO203"
    name: ClassVar[str] = "dense-zeros-for-a-sparse-cotangent"

    def check(self, subject: Subject) -> Iterator[Finding]:
        nested = _read_in_nests(subject)
        for place in costly(subject, "zeros"):
            if place.frame not in nested:
                yield self.finding(
                    subject,
                    says=f"the gradient adds a whole {place.size.shape}, zero but for one slice,"
                    f" in {place.steps}",
                    reason=_why(place, "JAX transposes a slice to an array of zeros around it"),
                    fix=_fix(place, "take the slice before the loop, or make it one of its `xs`"),
                    **place.details,
                )


@register
@dataclass(frozen=True)
class TableReadInsideNestedLoops(Rule):
    """
    What: an inner loop reads rows of a table from outside the outer loop, and the gradient makes
    and adds a whole table in each step of the outer loop.

    Why: the transposed inner loop sums its rows in a table of zeros of its own, which the outer
    loop then adds to the total. A single loop adds to the total in place.

    Example::

        def loss(table, ids):
            def sentence(state, ids):
                def word(state, i):
                    return jnp.tanh(state + table[i]), None

                return lax.scan(word, state, ids)[0], None

            return jnp.sum(lax.scan(sentence, jnp.zeros(table.shape[1]), ids)[0])

    Instead::

        def loss(table, ids):
            def sentence(state, rows):
                def word(state, row):
                    return jnp.tanh(state + row), None

                return lax.scan(word, state, rows)[0], None

            rows = table[ids]  # one gather before the loops, whose gradient is one scatter
            return jnp.sum(lax.scan(sentence, jnp.zeros(table.shape[1]), rows)[0])

    Thread: https://github.com/jax-ml/jax/issues/15906, https://github.com/FluxML/Zygote.jl/issues/323
    """

    code: ClassVar[str] = "JXO204"
    name: ClassVar[str] = "table-read-inside-nested-loops"

    def check(self, subject: Subject) -> Iterator[Finding]:
        nested = _read_in_nests(subject)
        for place in costly(subject, "zeros"):
            if place.frame in nested:
                yield self.finding(
                    subject,
                    says=f"the gradient adds a whole {place.size.shape} in {place.steps} of the"
                    " outer loop, for the rows that the inner loop reads",
                    reason=_why(place, "each inner loop sums its rows in a table of its own"),
                    fix=_fix(place, "read all rows before the loops, and scan over them"),
                    **place.details,
                )


def _why(place: Costly, cost: str) -> str:
    return f"{cost}; `optimize` does not change it: {place.refusal}" if place.refusal else cost


def _fix(place: Costly, instead: str) -> str:
    return f"`optimize` does it ({place.fixed_by}); or {instead}" if place.fixed_by else instead


def _read_in_nests(subject: Subject) -> set[Frame | None]:
    """The lines that read a window of an array from outside of two loops or more."""
    found = set()
    for op in subject.graph.walk():
        known = access(op)
        if known is not None and known.kind == "read" and _loops_between(op, known.array) > 1:
            found.add(user_frame(op))
    return found


def _loops_between(op: Op, value: Value) -> int:
    """How many loops around an op a value comes from outside of."""
    inside = takewhile(
        lambda around: not any(region.defines(value) for region in around.regions),
        with_parents(op.parent),
    )
    return sum(isinstance(around, Scan | While) for around in inside)
