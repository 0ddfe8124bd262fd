"""`explain`: what each pass did to a function, where in its source, and what it left alone and why.

Everything said here is measured: a pass journals its rewrites as they happen, and refuses with the
sentence that made it refuse (see `jaxpr_opt.engine.interface`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from jaxpr_opt import settings
from jaxpr_opt.bridge.compat_frames import boundary
from jaxpr_opt.donation.plan import Donation, donation
from jaxpr_opt.errors import check_function
from jaxpr_opt.frames import name_of
from jaxpr_opt.insight.journal import Journal
from jaxpr_opt.insight.saved import inside
from jaxpr_opt.ir.graph import Graph, Value
from jaxpr_opt.printing import plain, plural, short
from jaxpr_opt.reports import figures, observe
from jaxpr_opt.reports.account import PassReport, Place, accounts
from jaxpr_opt.reports.diff import GraphDiff, diff_graphs

MAX_PLACES = 8
"""Places a pass lists; the rest are counted."""
MIN_DONATION = 2**20
"""Bytes; of less that could be donated nothing is said."""


@dataclass(frozen=True, slots=True)
class Report:
    """What happened to a function; `print` it, with rich or without, or ask for `to_dict()`."""

    name: str
    diff: GraphDiff
    passes: tuple[PassReport, ...]
    """In order of first run."""
    failures: tuple[str, ...]
    """What went wrong in passes that failed; the program was optimised without them."""
    seconds: float
    """Spent in passes."""
    donation: Donation | None = None
    """What of the arguments could be donated; None if that is not known."""
    verbose: bool = False
    """Whether all that was not done is listed, place by place."""
    asks: str = ".in_full()"
    """How readers ask for that."""

    def in_full(self) -> Report:
        """The same report, with each place where something was not done."""
        return replace(self, verbose=True)

    @property
    def changed(self) -> bool:
        return any(each.done and not each.cleanup for each in self.passes)

    def to_dict(self) -> dict[str, Any]:
        """The whole report, for `json.dumps`."""
        return {
            "function": self.name,
            "changed": self.changed,
            "seconds": self.seconds,
            "figures": figures.to_dict(figures.figures(self.diff.before, self.diff.after)),
            "passes": [each.to_dict() for each in self.passes],
            "failures": list(self.failures),
            "donation": None if self.donation is None else self.donation.to_dict(),
        }

    def __str__(self) -> str:
        return plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._headline()
        if self.changed:
            for each in self.passes:
                if each.done and not each.cleanup:
                    costs = [figures.seconds_text(each.seconds), each.saved.text(self.diff.before)]
                    yield Text(f"\n{each.name}", style="bold green").append(
                        f"  {', '.join(filter(None, costs))}", "not bold dim"
                    )
                    yield from _listed(each.done)
            tidied = [
                f"{each.name} {each.count}" for each in self.passes if each.cleanup and each.done
            ]
            if tidied:
                yield Text(f"\nclean-up after them: {', '.join(tidied)}", style="dim")
        yield from self._near_misses()
        if self.failures:
            yield Text("\nfailed, and left out", style="bold red")
            yield from map(_indented, self.failures)
        yield from self._donation()
        if self.changed:
            yield Text()
            yield figures.table(figures.figures(self.diff.before, self.diff.after))

    def _headline(self) -> Iterator[RenderableType]:
        fired = sum(bool(each.done) and not each.cleanup for each in self.passes)
        missed = sum(len(each.refused) for each in self.passes if not each.cleanup)
        time = figures.seconds_text(self.seconds)
        if fired:
            yield Text(
                f"{self.name}: {plural(fired, 'pass')} changed the program, in {time}",
                style="bold",
            )
        elif not self.passes:
            why = "; JAXPR_OPT_DISABLE is set" if settings.current().disable else ""
            yield Text(f"{self.name}: no pass ran{why}", style="bold")
        else:
            near = f"; {plural(missed, 'near miss')}" if missed else ""
            yield Text(
                f"{self.name}: no pass found anything to improve, in {time}{near}", style="bold"
            )

    def _near_misses(self) -> Iterator[RenderableType]:
        missed = [each for each in self.passes if each.refused and not each.cleanup]
        if self.verbose:
            for each in missed:
                yield Text(f"\n{each.name}", style="bold yellow").append(
                    "  not done, because", "not bold dim"
                )
                yield from _listed(each.refused, len(each.refused))
        elif missed:
            yield Text("\nnot done, because", style="bold yellow").append(
                f"  {self.asks} shows each place", "not bold dim"
            )
            yield from (_indented(_counted(each)) for each in missed)

    def _donation(self) -> Iterator[RenderableType]:
        if self.donation is not None and self.donation.nbytes >= MIN_DONATION:
            yield Text("\ndonation", style="bold yellow").append(
                "  nothing is donated unless asked for: donate='matched' or 'auto'", "not bold dim"
            )
            yield self.donation


def _listed(places: Sequence[Place], most: int = MAX_PLACES) -> Iterator[RenderableType]:
    yield from (_indented(short(str(place))) for place in places[:most])
    if len(places) > most:
        yield _indented(f"and at {plural(len(places) - most, 'other place')}")


def _counted(report: PassReport) -> str:
    """`narrow-reads, 3 places: an index is unknown; and 1 other reason`: the most common."""
    reasons = Counter(place.reason for place in report.refused)
    ((first, _),) = reasons.most_common(1)
    others = f"; and {plural(len(reasons) - 1, 'other reason')}" if len(reasons) > 1 else ""
    return f"{report.name}, {plural(len(report.refused), 'place')}: {short(first)}{others}"


def _indented(text: str) -> RenderableType:
    """A list item; what does not fit continues under its text."""
    return Padding(Text(text), (0, 0, 0, 2))


# -- making reports ------------------------------------------------------------------------------


def advice(graph: Graph) -> Donation:
    """The donations that a caller may want.

    A gradient has the shape of its parameters and is no next version of them: they are needed to
    make that.
    """
    gradients = [i for i, value in enumerate(graph.outputs) if _is_cotangent(value)]
    return donation(graph, kept=gradients)


def _is_cotangent(value: Value) -> bool:
    """Whether an op that JAX has transposed makes the value, here or inside of a loop or a call."""
    made: Value | None = value
    while made is not None:
        if made.op is not None and made.op.source.transposed:
            return True
        made = inside(made)
    return False


@boundary
def explain(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """Report what each pass does to ``fun(*args, **kwargs)``, and what it refuses; nothing runs.

    Args:
      fun: plain, jitted or optimised, or anything that has optimised functions inside, as
        ``jax.jit(jax.grad(optimize(loss)))``.  A function without is optimised as a whole.
      *args: arrays, or `jax.ShapeDtypeStruct` objects for them: no data is needed.
      **kwargs: the same.

    Returns:
      A report: `print` it, or call `to_dict()`; `in_full()` lists every refused place.

    Raises:
      TypeError: `fun` is not a function.

    Example:
      >>> def total(xs):
      ...     return jax.lax.fori_loop(0, xs.size, lambda i, s: s + jnp.sin(xs[i]), 0.0)
      >>> report = jaxpr_opt.explain(jax.grad(total), jax.ShapeDtypeStruct((4096,), "float32"))
      >>> report.changed
      True
    """
    _check_callable("explain", fun=fun)
    before = observe.original(fun, args, kwargs)
    after, journals = observe.optimized(fun, args, kwargs)
    return report(name_of(fun), diff_graphs(before, after), journals, advice(after))


@boundary
def diff(
    fun: Callable[..., Any], *args: Any, against: Callable[..., Any] | None = None, **kwargs: Any
) -> GraphDiff:
    """Compare the program of ``fun(*args, **kwargs)`` with its optimised form or another function.

    Args:
      fun: as for `explain`.
      *args: arrays, or `jax.ShapeDtypeStruct` objects for them: no data is needed.
      against: compare with this function instead, both unoptimised.
      **kwargs: like `args`.

    Returns:
      The difference: `print` it; `changed` says whether there is one.

    Raises:
      TypeError: `fun` or `against` is not a function.

    Example:
      >>> x = jax.ShapeDtypeStruct((3,), "float32")
      >>> print(jaxpr_opt.diff(lambda x: x + x, x, against=lambda x: 2 * x))
        fn (x:f32[3]) {
      -   a:f32[3] = add x x
      +   m:f32[3] = mul 2.0 x
      -   return a
      +   return m
        }
    """
    _check_callable("diff", fun=fun, against=fun if against is None else against)
    if against is None:
        before, (after, _) = (
            observe.original(fun, args, kwargs),
            observe.optimized(fun, args, kwargs),
        )
    else:
        before, after = (observe.as_it_is(each, args, kwargs)[0] for each in (fun, against))
    return diff_graphs(before, after)


def _check_callable(caller: str, **functions: Any) -> None:
    for name, fun in functions.items():
        check_function(fun, caller, name)


def report(
    name: str,
    difference: GraphDiff,
    journals: Sequence[Journal],
    donation: Donation | None = None,
) -> Report:
    """Put together what is known of a function's optimisation."""
    failures = dict.fromkeys(message for journal in journals for _, message in journal.failures)
    passes = accounts(journals)
    seconds = sum(each.seconds for each in passes)
    return Report(name, difference, passes, tuple(failures), seconds, donation)
