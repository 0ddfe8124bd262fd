"""The gain of `jaxpr-opt run --optimize`: optimised programs beside plain ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxpr_opt.bridge import compat, compat_ad, compat_watch
from jaxpr_opt.frames import first_line
from jaxpr_opt.reports.figures import factor, seconds_text
from jaxpr_opt.run.arguments import Kept
from jaxpr_opt.run.recorder import Compiled
from jaxpr_opt.run.summaries import Summary, optimized
from jaxpr_opt.run.table import NONE, Sheet
from jaxpr_opt.sizes import bytes_text

ROUNDS = 5
"""How often a call is timed at most; the shortest time counts."""
PATIENCE = 2.0
"""Seconds of calls after which none is added."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a program takes; None is unknown."""

    set_up: float
    per_call: float | None
    memory: int | None


@dataclass(frozen=True, slots=True)
class Compared:
    """A function before and after; no `before` where passes left the program as it is."""

    looked: Summary
    before: Measured | None
    after: Measured
    why_untimed: str = ""


def compared(found: Sequence[Summary], tell: Callable[[str], None]) -> list[Compared]:
    """Compile the plain programs, and time calls of both with the arguments of the first call."""
    made = []
    for each in found:
        tell(f"measuring {each.name}, plain and optimised")
        try:
            made.append(_compared(each))
        except Exception as error:  # noqa: BLE001 -- as when memory does not suffice for both
            each.trouble = first_line(error)
    return made


def _compared(looked: Summary) -> Compared:
    program = looked.largest
    after = Measured(program.seconds, None, program.temp_bytes)
    faster = None if program.made is None else optimized(program)
    if faster is None:
        return Compared(looked, None, after)
    started = time.perf_counter()
    plain = program.again(compat.lowered(program.jaxpr))
    memory = compat_watch.temporary_bytes(plain.compile())
    set_up = program.trace_seconds + time.perf_counter() - started
    why = _why_untimed(program)
    times = (None, None) if program.args is None or why else _times(program.args, plain, faster)
    before = Measured(set_up, times[0], memory)
    return Compared(looked, before, Measured(after.set_up, times[1], after.memory), why)


def _why_untimed(program: Compiled) -> str:
    if compat_ad.has_side_effects(program.jaxpr):
        return "has side effects"
    return "" if program.args is not None else "its arguments were too large to keep"


def _times(args: Kept, plain: Any, faster: Any) -> tuple[float, float]:
    """Seconds of a call of each: the shortest of some, in turn."""
    functions = [compat_watch.function_of(each) for each in (plain, faster)]
    taken = [[_time(function, args.arrays())] for function in functions]
    if sum(map(sum, taken)) < PATIENCE:
        taken = [[], []]  # that was to warm up
    while sum(map(sum, taken)) < PATIENCE and len(taken[0]) < ROUNDS:
        for function, seconds in zip(functions, taken, strict=True):
            seconds.append(_time(function, args.arrays()))
    before, after = map(min, taken)
    return before, after


def _time(function: Callable[..., Any], args: Sequence[Any]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(function(*args))
    return time.perf_counter() - started


# -- for people ----------------------------------------------------------------------------------


def sheet(found: Sequence[Compared]) -> Sheet:
    """Set-up, a call and memory of each function, before and after."""
    titles = ("set-up", "a call", "", "memory", "")
    return Sheet(titles, [(each.looked, tuple(_cells(each))) for each in found])


def _cells(each: Compared) -> Iterator[str]:
    before, after = each.before, each.after
    if before is None:
        memory = NONE if after.memory is None else bytes_text(after.memory)
        yield from (time_text(after.set_up), "not changed", "", memory, "")
        return
    yield _both(before.set_up, after.set_up, time_text)
    yield each.why_untimed or _both(before.per_call, after.per_call, time_text)
    yield _ratio(before.per_call, after.per_call, time_text)
    yield _both(before.memory, after.memory, bytes_text)
    yield _ratio(before.memory, after.memory, bytes_text)


def time_text(seconds: float) -> str:
    """`40 us`, `400 us`, `12 ms`."""
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else seconds_text(seconds)


def _both(before: float | None, after: float | None, write: Callable[[float], str]) -> str:
    """`12 → 4 ms`: the unit once, where it is the same."""
    if before is None or after is None:
        return NONE
    first, last = write(before), write(after)
    if first == last:
        return last
    number, _, unit = first.rpartition(" ")
    return f"{number if unit == last.rpartition(' ')[2] else first} → {last}"


def _ratio(before: float | None, after: float | None, write: Callable[[float], str]) -> str:
    """`÷ 12`, `x 1.5`; empty where they are the same, as far as they are written."""
    if not before or not after or write(before) == write(after):
        return ""
    return f"÷ {factor(before / after)}" if after < before else f"x {factor(after / before)}"
