"""What a memory budget buys: the programs that `optimize(memory=...)` chooses from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from jaxpr_opt.engine.journal import Rewrite
from jaxpr_opt.frames import Frame, frame_text
from jaxpr_opt.memory.planner import Candidate, Plan, collect_plans
from jaxpr_opt.reports import observe
from jaxpr_opt.reports.figures import factor
from jaxpr_opt.reports.printing import plain
from jaxpr_opt.sizes import binary_text, binary_text_above

COLUMNS = ("memory", "part", "FLOPs", "time", "what is computed again")


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

    @property
    def headline(self) -> str:
        """What the program takes today."""
        return f"{self.name} takes {binary_text(self.points[0].bytes)} of temporary memory"

    def to_dict(self) -> dict[str, Any]:
        """The whole frontier, for `json.dumps`."""
        return {"function": self.name, "points": [each.to_dict() for each in self.points]}

    def __str__(self) -> str:
        return plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.headline, style="bold")
        if len(self.points) == 1:
            yield Text("No loop or layer keeps something for a gradient that is cheaper to repeat.")
            return
        yield self._table()
        example = binary_text_above(self.points[1].bytes)
        yield Text(f'\nThe second row is optimize(..., memory="{example}").')

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        for justify in ("right", "right", "right", "right", "left"):
            table.add_column(justify=justify)
        table.add_row(*COLUMNS, style="dim")
        for point in self.points:
            table.add_row(*self.row(point))
        return table

    def row(self, point: Point) -> tuple[str, ...]:
        """What is told of a point in each of the `COLUMNS`."""
        today, flops = self.points[0], point.flops
        return (
            binary_text(point.bytes),
            f"{point.part:.1%}",
            f"{factor(flops / today.flops)}x" if flops and today.flops else "unknown",
            f"{factor(point.seconds / today.seconds)}x",
            "\n".join(_told(point)),
        )


def _told(point: Point) -> Iterator[str]:
    """What a program computes again, line by line of the source."""
    if not point.repeated:
        yield "nothing: today's program"
    for each in dict.fromkeys(point.repeated):
        yield each.says if each.frame is None else f"{frame_text(each.frame)}: {each.says}"


def budget(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Frontier:
    """What `optimize(fun, memory=...)` may choose from: memory against time.

    Nothing is compiled or run; shapes will do for arguments.

    Args:
      fun: a function that computes a gradient, as `jax.grad(loss)` or a train step.
      *args: its arguments.
      **kwargs: its keyword arguments.
    """
    bare = observe.reselected(fun, None, (), memory="minimal")
    with collect_plans() as plans:
        bare.lower(*args, **kwargs)
    made = max(plans, key=lambda plan: plan.frontier[0].nbytes)
    return Frontier(observe.name_of(fun), tuple(_points(made)))


def _points(plan: Plan) -> Iterator[Point]:
    today = plan.frontier[0]
    for each in plan.frontier:
        part = each.nbytes / max(today.nbytes, 1)
        yield Point(each.nbytes, part, each.flops, each.seconds, tuple(_repeated(each)))


def _repeated(candidate: Candidate) -> Iterator[Repeated]:
    records = candidate.journal.records.values()
    done: Iterator[Rewrite] = (r for each in records if not each.cleanup for r in each.rewrites)
    return (Repeated(rewrite.says, rewrite.frame) for rewrite in done)
