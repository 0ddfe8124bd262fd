"""Growth: what costs more than its share as the arguments grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxpr_opt.frames import Frame
from jaxpr_opt.insight.growth import Term, Trend, growth
from jaxpr_opt.insight.powers import Limit, order_text, parse_limit
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.rule import Rule, register
from jaxpr_opt.lint.subject import Subject
from jaxpr_opt.reports.scaling import LABELS, by_line

INSTEAD = {
    "residual_bytes": "store less per step: `jax.checkpoint` stores the inputs of the step only",
    "work": "read and write one row per step, not the array: as `xs` and `ys` of the scan",
    "peak_bytes": "compute the array in pieces",
}
"""What else to write, where no pass does it."""


@register
@dataclass(frozen=True, slots=True)
class GrowthOverLimit(Rule):
    """What: a line makes residuals, work or peak memory grow faster than the target allows.

    Why: a test at a small size passes, and the program is too slow or too large at the size that
    counts. The program is traced at the sizes of `scale`; the exponent of a line shows its growth.
    For a `while`, whose number of iterations is unknown, one iteration counts.

    Example::

        # pyproject.toml: scale = "T=64,128,256", growth = "O(T)"
        def loss(xs):
            def step(ys, i):
                y = jnp.sin(ys[i - 1] + xs[i])
                return ys.at[i].set(y), None  # O(T^2) work in the gradient
            ys, _ = lax.scan(step, jnp.zeros_like(xs), jnp.arange(1, len(xs)))
            return jnp.sum(ys)

    Instead::

        def loss(xs):
            def step(last, x):
                y = jnp.sin(last + x)
                return y, y
            _, ys = lax.scan(step, jnp.zeros(()), xs[1:])
            return jnp.sum(ys)

    Thread: https://github.com/jax-ml/jax/issues/15906
    """

    code = "JXO611"
    name = "growth-over-limit"
    severity = "error"

    def check(self, subject: Subject) -> Iterator[Finding]:
        scaling, grown = subject.scaling, subject.growth
        if scaling is None or grown is None or not scaling.limit:
            return
        limit = parse_limit(scaling.limit, scaling.name)
        for trend in grown.trends:
            yield from _findings(self, subject, trend, trend.faster(limit), limit)


@register
@dataclass(frozen=True, slots=True)
class SuperlinearResiduals(Rule):
    """What: what the gradient keeps grows faster than the size that the arguments grow with.

    Why: twice the sequence is four times the memory. Usually it is an array that grows with the
    size, stored in each step of a loop whose length does, too.

    Example::

        def loss(xs):
            def row(_, x):
                weights = jax.nn.softmax(x * xs)  # as long as xs, kept for each x
                return None, weights @ xs
            return jnp.sum(lax.scan(row, None, xs)[1])

    Instead::

        def loss(xs):
            @jax.checkpoint  # or say that it is meant: growth = "O(T^2)"
            def row(_, x):
                weights = jax.nn.softmax(x * xs)
                return None, weights @ xs
            return jnp.sum(lax.scan(row, None, xs)[1])

    Thread: https://github.com/jax-ml/jax/issues/10197
    """

    code = "JXO612"
    name = "superlinear-residuals"

    def check(self, subject: Subject) -> Iterator[Finding]:
        scaling, grown = subject.scaling, subject.growth
        if scaling is None or grown is None or scaling.limit:
            return
        limit, trend = parse_limit(f"O({scaling.name})"), grown["residual_bytes"]
        terms = [term for term in trend.faster(limit) if _is_worth(subject, term)]
        yield from _findings(self, subject, trend, terms, limit)


def _is_worth(subject: Subject, term: Term) -> bool:
    """Whether a term is large at the largest size that is looked at, or at the target's own."""
    assert subject.scaling is not None
    own, largest = subject.scaling.own, subject.scaling.sizes[-1]
    amount = term.amounts[-1]
    grown = amount * (own / largest) ** term.exponent if own is not None else 0
    return subject.at(largest).is_worth(amount) or subject.is_worth(int(grown))


def _blamed(terms: Sequence[Term]) -> Iterator[tuple[Frame | None, list[Term]]]:
    """The lines that are to blame; what has no line only where no line has a part in it."""
    found = by_line(terms)
    if found:
        yield from found.items()
    elif terms:
        yield None, list(terms)


def _findings(
    rule: Rule, subject: Subject, trend: Trend, terms: Sequence[Term], limit: Limit
) -> Iterator[Finding]:
    """One for each line; `terms` are those that grow faster than the limit."""
    scaling = subject.scaling
    if not terms or scaling is None:
        return
    label, write = LABELS[trend.measure]
    sizes = ", ".join(map(str, trend.sizes))
    fix = _fix(subject, trend, limit)
    for frame, of_line in _blamed(terms):
        worst, *_ = of_line
        order = order_text(worst.exponent, scaling.name)
        whats = ", ".join(dict.fromkeys(term.place.what for term in of_line))
        amounts = trend.together(of_line)
        once = "in one iteration of a while: " if worst.place.iterated else ""
        yield rule.finding(
            subject,
            says=f"{order} {label} in {whats}: faster than {limit.text}",
            reason=f"{once}{', '.join(map(write, amounts))} at {scaling.name} = {sizes}",
            fix=fix,
            frame=frame,
            bytes=None if trend.measure == "work" else amounts[-1],
        )


def _fix(subject: Subject, trend: Trend, limit: Limit) -> str:
    """How to mend it: by `optimize`, or by other code."""
    assert subject.scaling is not None
    name, label = subject.scaling.name, LABELS[trend.measure][0]
    at = {size: subject.at(size).optimized for size in subject.scaling.sizes}
    optimized = growth(at)[trend.measure]
    if not optimized.faster(limit):
        return f"`optimize` makes the {label} of the program {order_text(optimized.exponent, name)}"
    order = order_text(trend.exponent, name)
    return f'{INSTEAD[trend.measure]}; if it is meant, growth = "{order}" allows it'
