"""A summary of each compiled program: figures and findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxpr_opt import every_program
from jaxpr_opt.bridge import compat, compat_watch, guard
from jaxpr_opt.engine import registry
from jaxpr_opt.frames import Frame, first_line
from jaxpr_opt.insight.journal import collect_journals
from jaxpr_opt.lint import config
from jaxpr_opt.lint.program import ProgramTarget
from jaxpr_opt.lint.result import NO_GRADIENT, Checked
from jaxpr_opt.lint.run import Run
from jaxpr_opt.reports import observe
from jaxpr_opt.run.recorder import Compiled


@dataclass
class Summary:
    """A function, the programs that were compiled of it, and what lint says of the largest."""

    programs: Sequence[Compiled]
    checked: Checked
    """What lint says of the largest."""
    optimized_bytes: int | None = None
    """What XLA sets aside for the largest when it is optimised; None if that is not known."""
    trouble: str = ""
    """Why that is not known."""
    largest: Compiled = field(init=False)

    def __post_init__(self) -> None:
        self.largest = largest(self.programs)

    @property
    def name(self) -> str:
        return self.largest.name

    @property
    def place(self) -> Frame | None:
        return self.largest.place

    @property
    def times(self) -> int:
        """How often it was compiled."""
        return sum(each.times for each in self.programs)

    @property
    def seconds(self) -> float:
        """Of its set-up, all in all."""
        return sum(each.seconds for each in self.programs)

    @property
    def kept_bytes(self) -> int | None:
        """The bytes that its gradient keeps; None where it computes none."""
        kept = self.checked.figures.get("residual_bytes")
        return None if self.checked.how == NO_GRADIENT else kept

    @property
    def saved_bytes(self) -> int:
        """Of temporary memory, that optimising would save."""
        if self.largest.temp_bytes is None or self.optimized_bytes is None:
            return 0
        return max(self.largest.temp_bytes - self.optimized_bytes, 0)


def summaries(
    programs: Iterable[Compiled], tell: Callable[[str], None], *, compiles: bool
) -> list[Summary]:
    """Look at what was compiled, function by function: those with most to gain first.

    `compiles`: what `optimize` would change is compiled, to see how much memory it takes.
    """
    groups = _by_function(programs)
    names = unique([largest(group).name for group in groups])
    project = config.load(config.find(Path.cwd()))
    run = Run(project, project.chosen(None, ()), tell=tell)
    targets = [_target(name, largest(group)) for name, group in zip(names, groups, strict=True)]
    found = [
        Summary(group, checked)
        for group, checked in zip(groups, run.result(targets).targets, strict=True)
    ]
    if compiles:
        for each in found:
            tell(f"compiling {each.name}, optimised")
            _compile_optimized(each)
    return sorted(found, key=lambda each: (-each.saved_bytes, -(each.largest.temp_bytes or 0)))


def largest(programs: Sequence[Compiled]) -> Compiled:
    """The program that XLA sets most memory aside for."""
    return max(programs, key=lambda each: each.temp_bytes or 0)


def unique(names: Sequence[str]) -> list[str]:
    """The names; the second of several that are the same has a number, and so on."""
    return [
        name if name not in names[:n] else f"{name}-{names[:n].count(name) + 1}"
        for n, name in enumerate(names)
    ]


def _by_function(programs: Iterable[Compiled]) -> list[list[Compiled]]:
    groups: defaultdict[tuple[str, Frame | None], list[Compiled]] = defaultdict(list)
    for each in programs:
        groups[each.name, each.place].append(each)
    return list(groups.values())


def _target(name: str, program: Compiled) -> ProgramTarget:
    return ProgramTarget(
        name=name,
        graph=lambda: observe.of_jaxpr(lambda: program.jaxpr, name)[0],
        donated=tuple(program.donated),
        begins=program.place,
    )


def optimized(program: Compiled) -> Any:
    """A program lowered again, optimised; None where no pass changes it."""
    with collect_journals() as journals:
        made = every_program.optimized(program.jaxpr, registry.default_pipeline(), program.name)
        lowered = None if made is None else program.again(compat.lowered(made))
    return lowered if any(journal.changed for journal in journals) else None


def _compile_optimized(each: Summary) -> None:
    """Find out what XLA sets aside for a program when it is optimised."""
    if not guard.is_open():
        return
    try:
        lowered = optimized(each.largest)
        bytes_ = None if lowered is None else compat_watch.temporary_bytes(lowered.compile())
        each.optimized_bytes = each.largest.temp_bytes if lowered is None else bytes_
    except Exception as error:  # noqa: BLE001 -- it is one figure of many
        each.trouble = first_line(error)
