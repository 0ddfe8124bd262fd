"""`growth`: how fast the cost of a function grows with a size, and which lines cause it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jaxpr_opt import targets
from jaxpr_opt.bridge.compat_frames import boundary
from jaxpr_opt.errors import check_function
from jaxpr_opt.frames import Frame, frame_text, name_of
from jaxpr_opt.insight import growth as analysis
from jaxpr_opt.insight.growth import Growth, Measure, Term, Trend
from jaxpr_opt.insight.powers import order_text
from jaxpr_opt.printing import plain
from jaxpr_opt.reports import observe
from jaxpr_opt.reports.figures import number_text
from jaxpr_opt.sizes import bytes_text

LABELS: dict[Measure, tuple[str, Callable[[float], str]]] = {
    "residual_bytes": ("residuals", bytes_text),
    "work": ("work", number_text),
    "peak_bytes": ("peak memory", bytes_text),
}
"""How measures are presented."""
MAX_LINES = 3
"""Lines of the source that are shown for each measure."""


@dataclass(frozen=True, slots=True)
class GrowthReport:
    """How a function grows; `print` it, with rich or without, or ask for `to_dict()`."""

    function: str
    size: str
    """What the size is called."""
    growth: Growth

    def to_dict(self, path: Callable[[str], str] = str) -> dict[str, Any]:
        """The whole report, for `json.dumps`; `path` says how files are written."""
        return {
            "function": self.function,
            "size": self.size,
            "sizes": list(self.growth.sizes),
            **{trend.measure: _trend_to_dict(trend, path) for trend in self.growth.trends},
        }

    def sentence(self) -> str:
        """`residuals O(T), work O(T^2), peak memory O(T)`."""
        orders = (
            (LABELS[trend.measure][0], order_text(trend.exponent, self.size))
            for trend in self.growth.trends
        )
        return ", ".join(f"{label} {order}" for label, order in orders)

    def __str__(self) -> str:
        return plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"{self.function}: how it grows with {self.size}", style="bold")
        yield self.table()
        for trend in self.growth.trends:
            lines = list(self._lines(trend))
            if lines:
                yield Text(f"\n{LABELS[trend.measure][0]}", style="bold")
                yield from lines

    def table(self) -> Table:
        """The measures at each size, and the orders they grow with."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("")
        for size in self.growth.sizes:
            table.add_column(f"{self.size}={size}", justify="right")
        table.add_column("growth", justify="right")
        for trend in self.growth.trends:
            label, write = LABELS[trend.measure]
            order = order_text(trend.exponent, self.size)
            table.add_row(label, *map(write, trend.amounts), order)
            if trend.iteration is not None:
                blanks = [""] * len(trend.sizes)
                order = order_text(trend.iteration, self.size)
                table.add_row("  an iteration of a while", *blanks, order)
        return table

    def _lines(self, trend: Trend) -> Iterator[RenderableType]:
        notable = [term for term in trend.terms if term.matters and term.place.frame is not None]
        for frame, terms in list(by_line(notable).items())[:MAX_LINES]:
            order = order_text(terms[0].exponent, self.size)
            whats = ", ".join(dict.fromkeys(term.place.what for term in terms))
            share = sum(term.share for term in terms)
            weight = "" if trend.measure == "peak_bytes" else f"  {share:4.0%}"
            yield Padding(Text(f"{order}{weight}  {frame_text(frame)}: {whats}"), (0, 0, 0, 2))


def by_line(terms: Sequence[Term]) -> dict[Frame, list[Term]]:
    """Terms line by line, those without a place left out."""
    found: dict[Frame, list[Term]] = {}
    for term in terms:
        if term.place.frame is not None:
            found.setdefault(term.place.frame, []).append(term)
    return found


def _trend_to_dict(trend: Trend, path: Callable[[str], str]) -> dict[str, Any]:
    return {
        "amounts": list(trend.amounts),
        "exponent": round(trend.exponent, 3),
        "exponent_of_an_iteration": trend.iteration,
        "terms": [_term_to_dict(term, path) for term in trend.terms if term.matters],
    }


def _term_to_dict(term: Term, path: Callable[[str], str]) -> dict[str, Any]:
    what, frame, in_while = term.place
    file, line, function = frame or (None, None, None)
    return {
        "what": what,
        "file": None if file is None else path(file),
        "line": line,
        "function": function,
        "in_while": in_while,
        "amounts": list(term.amounts),
        "exponent": round(term.exponent, 3),
    }


@boundary
def growth(
    fun: Callable[..., Any],
    args_at: Callable[[int], Any],
    sizes: Sequence[int] = (64, 128, 256),
    *,
    name: str = "n",
) -> GrowthReport:
    """Find how fast the residuals, the work and the peak memory of a function grow with a size.

    The function is traced at each size: nothing is compiled, run or allocated, so the answer does
    not depend on a machine.

    Args:
      fun: plain, jitted or optimised.  Optimised functions in it are measured optimised.
      args_at: the arguments at a size: a tuple ``args`` or ``(args, kwargs)`` of
        `jax.ShapeDtypeStruct` objects or arrays (those are never made).
      sizes: two or more; three separate a power from lower-order terms.
      name: the name of the size.

    Raises:
      TypeError: `fun` or `args_at` is not callable.
      ValueError: `sizes` are not two different positive integers or more.

    Example:
      >>> def outer(x):
      ...     return jnp.sum(jnp.outer(x, x))
      >>> print(jaxpr_opt.growth(outer, lambda n: (jax.ShapeDtypeStruct((n,), "float32"),)))
      outer: how it grows with n
                      n=64    n=128    n=256  growth
      residuals        0 B      0 B      0 B    O(1)
      work          41,476  164,868  657,412  O(n^2)
      peak memory  16.6 kB  66.1 kB   263 kB  O(n^2)
      ...
    """
    return GrowthReport(name_of(fun), name, traced_growth(fun, args_at, sizes))


def traced_growth(
    fun: Callable[..., Any], args_at: Callable[[int], Any], sizes: Sequence[int]
) -> Growth:
    """The figures of `growth`."""
    for what, value in (("fun", fun), ("args_at", args_at)):
        check_function(value, "growth", what)
    if len(set(sizes)) < 2 or not all(n > 0 for n in sizes):
        raise ValueError(f"growth: sizes must be two positive integers or more, got {sizes!r}")
    given = {size: targets.arguments_of(args_at, "args_at", size) for size in sizes}
    return analysis.growth({n: observe.as_it_is(fun, *given[n])[0] for n in sizes})
