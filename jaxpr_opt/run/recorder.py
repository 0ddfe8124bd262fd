"""Record each program that JAX compiles while a script runs, with its times.

Only what is compiled passes here: calls of what is compiled already take JAX's own fast path, which
nobody counts.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from jaxpr_opt.bridge import compat_jit, compat_source, compat_watch
from jaxpr_opt.frames import Frame, is_machinery
from jaxpr_opt.run.arguments import Kept, kept


class Stopped(SystemExit):
    """As many programs were compiled as were asked for."""


@dataclass(eq=False)
class Compiled:
    """A program of the user, compiled once or several times for the same types."""

    name: str
    place: Frame | None
    """Where the function begins."""
    jaxpr: Any
    """As it was written."""
    again: Callable[[Any], Any]
    """Lowers a program of the same type as JAX has lowered this one."""
    donated: Sequence[bool]
    trace_seconds: float
    optimize_seconds: float = 0.0
    """Of the passes that run before it is lowered; 0 where it is not optimised."""
    made: Any = None
    """The program that was compiled, where that is not the one that was written."""
    args: Kept | None = None
    """The arguments of its first call, where they are to be used again."""
    compile_seconds: float = 0.0
    """Of lowering and compiling."""
    temp_bytes: int | None = None
    times: int = 0

    @property
    def seconds(self) -> float:
        """Of its set-up, each time."""
        return self.trace_seconds + self.optimize_seconds + self.compile_seconds


@dataclass
class Recorder:
    """Everything that was compiled in this process."""

    only: str = "*"
    """Programs whose names match are looked at."""
    stop_after: int | None = None
    keeps_libraries: bool = False
    """Whether programs of libraries are looked at, too."""
    keeps_arguments: bool = False
    programs: dict[Any, Compiled] = field(default_factory=dict)
    """By what was compiled."""
    libraries: Counter[str] = field(default_factory=Counter)
    """How many programs of each package were compiled."""
    library_seconds: float = 0.0
    replaced: dict[int, tuple[Any, Any, float]] = field(default_factory=dict)
    """By what stands for it, each program that was optimised; and the seconds of that."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note_replaced(self, written: Any, made: Any, seconds: float) -> None:
        """Remember what a program stands for."""
        self.replaced[id(made)] = written, made, seconds

    def lowering(self, lowered: compat_watch.Lowering) -> Compiled | str:
        """What is known of a program: its record, or whose it is if it is a library's."""
        if (found := self.programs.get(id(lowered.jaxpr))) is not None:
            return found
        written, made, seconds = self.replaced.get(id(lowered.jaxpr), (lowered.jaxpr, None, 0.0))
        place = None if compat_jit.is_helper(written) else compat_source.users_function(written)
        if place is None and not self.keeps_libraries:
            return _owner(written)
        name = called(lowered.name, place, written)
        program = Compiled(
            name,
            place,
            written,
            lowered.again,
            lowered.donated,
            lowered.trace_seconds,
            seconds,
            made,
        )
        if self.keeps_arguments and fnmatch(name, self.only):
            program.args = kept(lowered.args, written)
        return program

    def compiled(self, known: Compiled | str, executable: Any, seconds: float) -> None:
        """Note that it was compiled; raises `Stopped` after the last that is asked for."""
        with self.lock:
            if isinstance(known, str):
                self.libraries[known] += 1
                self.library_seconds += seconds
                return
            if not fnmatch(known.name, self.only):
                return
            if not known.times:
                known.compile_seconds = seconds
                known.temp_bytes = compat_watch.temporary_bytes(executable)
            known.times += 1
            self.programs[id(known.jaxpr if known.made is None else known.made)] = known
        if self.stop_after is not None and len(self.programs) >= self.stop_after:
            raise Stopped(0)


def called(name: str, place: Frame | None, jaxpr: Any) -> str:
    """The name of a program as people know it: a function that JAX made of the user's has the name
    of that.
    """
    library = compat_source.library_function(jaxpr)
    is_jaxs = library is not None and is_machinery(library[0]) and name.startswith("_")
    unnamed = is_jaxs or name == "<unnamed function>"
    return place[2].rpartition(".")[2] if unnamed and place is not None else name


def _owner(jaxpr: Any) -> str:
    """The package that a program is of."""
    library = compat_source.library_function(jaxpr)
    if library is None or is_machinery(library[0]):
        return "jax"
    parts = Path(library[0]).parts
    names = [n for n, part in enumerate(parts) if part in ("site-packages", "dist-packages")]
    return Path(parts[names[-1] + 1]).stem if names else Path(library[0]).stem


current = Recorder()
"""That of this process."""


def start(options: dict[str, Any]) -> None:
    """Record what is compiled from now on; with the option `optimize`, optimise it."""
    current.only = options["only"]
    current.stop_after = options["stop_after"]
    current.keeps_libraries = options["all"]
    current.keeps_arguments = options["optimize"]
    compat_watch.watch(compat_watch.Watcher(current.lowering, current.compiled))
    if options["optimize"]:
        from jaxpr_opt import every_program

        every_program.turn_on(current.note_replaced)
