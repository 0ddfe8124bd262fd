"""The programs that `optimize(memory=...)` chooses from: their memory and their time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from jaxpr_opt.engine import registry
from jaxpr_opt.errors import check_function
from jaxpr_opt.frames import Frame, frame_text, name_of
from jaxpr_opt.insight.journal import Rewrite
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.memory.planner import Candidate, Plan, collect_plans
from jaxpr_opt.printing import plain, plural, short
from jaxpr_opt.reports import observe
from jaxpr_opt.reports.figures import factor
from jaxpr_opt.sizes import binary_text_above

NOTABLE = 0.95
"""What is no smaller than this part of the row before gets no row of its own."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """What is computed again instead of being kept."""

    says: str
    frame: Frame | None

    def to_dict(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {"says": self.says, "at": self.frame and frame_text(self.frame)}


@dataclass(frozen=True, slots=True)
class Point:
    """A program that a budget may buy."""

    bytes: int
    """Temporary memory at its peak, as far as it is known."""
    part: float
    """The same, of what the program takes without a budget."""
    flops: int | None
    """Floating point operations of a run; None if they are not known."""
    seconds: float
    """Predicted seconds of a run."""
    repeated: tuple[Repeated, ...]

    def to_dict(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {
            "bytes": self.bytes,
            "part": self.part,
            "flops": self.flops,
            "seconds": self.seconds,
            "repeated": [each.to_dict() for each in self.repeated],
        }


@dataclass(frozen=True, slots=True)
class Frontier:
    """What memory budgets buy; `print` it, with rich or without, or ask for `to_dict()`."""

    name: str
    points: tuple[Point, ...]
    """The fastest first, which is the program without a budget."""
    has_gradient: bool = True
    """Whether the program computes a gradient: only what one keeps can be repeated."""

    @property
    def headline(self) -> str:
        """What the program takes today."""
        takes = binary_text_above(self.points[0].bytes)
        return f"{self.name}, optimised, takes about {takes} of temporary memory"

    @property
    def notable(self) -> tuple[Point, ...]:
        """The points worth a row: each is a good deal smaller than the one before."""
        chosen = [self.points[0]]
        for point in self.points[1:]:
            if point.bytes <= NOTABLE * chosen[-1].bytes:
                chosen.append(point)
        return tuple(chosen)

    def to_dict(self) -> dict[str, Any]:
        """The whole frontier, for `json.dumps`."""
        return {"function": self.name, "points": [each.to_dict() for each in self.points]}

    def __str__(self) -> str:
        return plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.headline, style="bold")
        if len(self.notable) == 1:
            yield Text(
                "No loop or layer stores a residual that is cheaper to compute again."
                if self.has_gradient
                else "It computes no gradient, so there are no residuals to compute again."
            )
            return
        yield self._table()
        example = binary_text_above(self.notable[1].bytes)
        yield Text(f'\nThe second row is optimize(..., memory="{example}").')
        if rest := len(self.points) - len(self.notable):
            yield Text(f"{plural(rest, 'program')} of nearly these sizes left out.", "dim")

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        rows = [self.row(point) for point in self.notable]
        *figures, _ = rows[0]
        for _ in figures:
            table.add_column(justify="right")
        table.add_row(*rows[0], style="dim")
        for row in rows:
            table.add_row(*row.values())
        return table

    def row(self, point: Point) -> dict[str, str]:
        """The row of a point, by columns; nothing of FLOPs where those are not known."""
        today = self.points[0]
        row = {
            "memory": binary_text_above(point.bytes),
            "part": f"{point.part:.0%}" if point.part >= 0.1 else f"{point.part:.1%}",
            "FLOPs": f"{factor((point.flops or 0) / (today.flops or 1))}x",
            "time": f"{factor(point.seconds / today.seconds)}x",
            "what is computed again": "\n".join(_repeated_lines(point)),
        }
        if not all(each.flops for each in self.points):
            del row["FLOPs"]
        return row


def _repeated_lines(point: Point) -> Iterator[str]:
    """The lines of the source that a program computes again."""
    if not point.repeated:
        yield "nothing"
    for each in dict.fromkeys(point.repeated):
        says = short(each.says)
        yield says if each.frame is None else f"{frame_text(each.frame)}: {says}"


def budget(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Frontier:
    """List the programs that `optimize(fun, memory=...)` chooses from: memory against time.

    Nothing is compiled or run; shapes suffice as arguments.

    Args:
      fun: a function that computes a gradient, as `jax.grad(loss)` or a train step.
      *args: arrays, or `jax.ShapeDtypeStruct` objects for them: no data is needed.
      **kwargs: like `args`.

    Returns:
      A table: `print` it, or call `to_dict()`; `points` has bytes of temporary memory and
      predicted seconds of each program, the fastest first.

    Raises:
      TypeError: `fun` is not a function.

    Example:
      >>> def loss(w, x):
      ...     return jax.lax.scan(lambda h, _: (jnp.sin(w * h), None), x, length=400)[0].sum()
      >>> x = jax.ShapeDtypeStruct((1024,), "float32")
      >>> today, *others = jaxpr_opt.budget(jax.grad(loss), x, x).points
      >>> others[-1].bytes < today.bytes / 5
      True
    """
    check_function(fun, "budget")
    return of_graph(observe.original(fun, args, kwargs), name_of(fun))


def of_graph(graph: Graph, name: str) -> Frontier:
    """The choices of memory budgets for a program; the graph stays."""
    with collect_plans() as plans:
        observe.improved(graph, registry.resolve(memory="minimal"))
    return Frontier(name, tuple(_points(plans[-1])), graph.has_gradient)


def _points(plan: Plan) -> Iterator[Point]:
    today = plan.frontier[0]
    for each in plan.frontier:
        part = each.nbytes / max(today.nbytes, 1)
        yield Point(each.nbytes, part, each.flops, each.seconds, tuple(_repeated(each)))


def _repeated(candidate: Candidate) -> Iterator[Repeated]:
    records = candidate.journal.records.values()
    done: Iterator[Rewrite] = (r for each in records if not each.cleanup for r in each.rewrites)
    return (Repeated(rewrite.says, rewrite.frame) for rewrite in done)
