"""Targets that are programs already: recorded while a script ran, or read from a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxpr_opt.frames import Frame
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.lint.options import Options
from jaxpr_opt.lint.subject import Subject
from jaxpr_opt.lint.target import Target, fields_of
from jaxpr_opt.reports import observe
from jaxpr_opt.saving.read import Saved


def nothing() -> None:
    """The function of a target that has a program in place of one."""


def of_saved(program: Saved, name: str, **settings: Any) -> ProgramTarget:
    """A program from a file as a target."""
    return ProgramTarget(
        name=name,
        graph=lambda: observe.as_it_is(program, program.arguments, {})[0],
        donated=tuple(map(bool, program.data["donated"])),
        begins=program.begins,
        **settings,
    )


@dataclass(frozen=True, kw_only=True)
class ProgramTarget(Target):
    """A program to lint, as it is; there is no function to trace, so no gradient, and no growth."""

    function: Callable[..., None] = nothing
    graph: Callable[[], Graph]
    donated: Sequence[bool] = ()
    begins: Frame | None = None
    """Where its function begins."""

    @property
    def place(self) -> Frame | None:
        """Where its function begins."""
        return self.begins

    def subject(self, defaults: Options) -> Subject:
        """The program that rules look at."""
        options = Options(**{**fields_of(defaults), **self.settings})
        about = Subject(self.name, self.function, (), {}, "as-is", options, place=self.begins)
        about.graph = self.graph()
        about.donated = list(self.donated) or [False] * len(about.graph.inputs)
        return about
