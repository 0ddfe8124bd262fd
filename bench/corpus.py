"""Every program at hand beside plain JAX: none may take over 2% more memory, or 5% more time.

The programs: those of bench/everyday, of examples/, of the libraries that are installed, and the
small ones of the tests.  Each is looked at forward, under `vmap`, and with its gradient in either
order.  What lowers to the same text as in plain JAX is not compiled.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from rich.console import Console

from bench import bounded_while, carried_arrays, everyday, libraries, transformer
from bench.everyday.entry import Entry, summed
from bench.harness import Program, Row, measure, optimizer
from bench.limits import OURS, PLAIN, above_plain, temporary_bytes
from bench.sweep import Options
from examples import bounded_while as nested
from examples import ragged_rnn
from jaxpr_opt import settings

Function = Callable[..., Any]

INSIDE, OUTSIDE = OURS
ROWS = 3
"""Of a batch."""
SHARE = 16
"""Examples are looked at in a size so many times smaller than their largest."""


class Mode(NamedTuple):
    """A way to use a program: what plain JAX does, before or after which `optimize` comes."""

    function: Function
    transform: Function
    arguments: tuple[Any, ...]

    def programs(self, group: str, mode: str) -> Iterator[Program]:
        """The same in plain JAX, optimised as a whole, and optimised inside of the transform."""
        made = {
            PLAIN: lambda: jax.jit(self.transform(self.function)),
            OUTSIDE: lambda: optimizer()(self.transform(self.function)),
            INSIDE: lambda: jax.jit(self.transform(optimizer()(self.function))),
        }
        for name, make in made.items():
            yield Program(name=f"{name}, {mode}", make=make, arguments=self.arguments, group=group)


def entries() -> Iterator[tuple[str, Entry]]:
    """Every program by name."""
    yield from everyday.PROGRAMS.items()
    for name, make in of_examples():
        yield name, make()
    yield from _of_libraries()
    for each in importlib.import_module("tests.programs").PROGRAMS:
        yield f"tests: {each.id}", Entry(*each.values)


def of_examples() -> Iterator[tuple[str, Callable[[], Entry]]]:
    """Those of the benchmarks whose size is a choice, small; made when they are called."""
    for family in carried_arrays.FAMILIES:
        for name, function in (("", family.plain), (", by hand", family.hand)):
            yield f"{family.name}{name}", partial(_of_family, family, function)
    for form, loop in bounded_while.LOOPS.items():
        yield f"bounded while, {form}", partial(_bounded_while, loop)
    yield "ragged RNN", lambda: Entry(ragged_rnn.loss, ragged_rnn.arguments(time=64))
    for scanned in (False, True):
        yield f"transformer{', scanned' * scanned}", partial(_transformer, scanned)


def _of_family(family: carried_arrays.Family, function: Function) -> Entry:
    arguments = family.arguments(max(family.largest // SHARE, 8))
    return Entry(function, arguments, family.gradient is not None)


def _bounded_while(loop: Any) -> Entry:
    loss = partial(nested.loss, bound=64, loop=loop)
    return Entry(loss, nested.arguments(batch=32, steps=8))


def _transformer(scanned: bool) -> Entry:
    params, tokens = transformer.make_params(4, 128, 512), jnp.zeros((4, 33), jnp.int32)
    return Entry(partial(transformer.loss, scanned=scanned), (params, tokens))


def _of_libraries() -> Iterator[tuple[str, Entry]]:
    for makers in libraries.PROGRAMS.values():
        for make in makers:
            try:
                yield make.__name__, Entry(*make())
            except ImportError:
                continue


def modes(entry: Entry) -> Iterator[tuple[str, Mode]]:
    """The ways to use a program."""
    yield "forward", Mode(entry.function, lambda f: f, entry.arguments)
    rows, axes = _batch(entry.arguments)
    yield "vmap", Mode(entry.function, lambda f: jax.vmap(f, axes), rows)
    if entry.differentiated:
        loss = summed(entry.function)
        yield "gradient", Mode(loss, jax.grad, entry.arguments)
        yield "vmap of gradient", Mode(loss, lambda f: jax.vmap(jax.grad(f), axes), rows)


def _batch(arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """Rows of all arguments but the first, which are the weights of most programs, or of that
    alone; and the axes to map over.
    """
    alone = len(arguments) == 1
    axes = tuple(0 if alone or i else None for i in range(len(arguments)))
    spread = lambda x: jnp.broadcast_to(x, (ROWS, *jnp.shape(x)))  # noqa: E731
    pairs = zip(arguments, axes, strict=True)
    return tuple(x if axis is None else jax.tree.map(spread, x) for x, axis in pairs), axes


def text(program: Program) -> str:
    """What a program lowers to, but for the names of functions.

    Raises:
      PassError: a pass fails.
    """
    jitted: Any = program.make()
    with settings.override(strict=True):
        return re.sub(r"@[\w.<>]+", "@", jitted.lower(*program.arguments).as_text())


def compared(group: str, entry: Entry, rounds: int) -> Iterator[Row]:
    """A row for each use that is not lowered to the same text as in plain JAX, which has a row
    before them; none where JAX itself cannot do it.
    """
    for mode, each in modes(entry):
        plain, *ours = each.programs(group, mode)
        try:
            expected = text(plain)
        except Exception:  # noqa: BLE001  it has no gradient, say
            continue
        changed: dict[str, Program] = {}
        for program in ours:
            found = text(program)
            if found != expected:
                changed.setdefault(found, program)
        if changed and rounds:
            yield from measure([plain, *changed.values()], rounds=rounds)
        elif changed:
            yield from map(_held, [plain, *changed.values()])


def _held(program: Program) -> Row:
    """The memory of a program that does not run."""
    row = Row(name=program.name, group=program.group, size=program.size)
    row.temp_bytes = temporary_bytes(program.make(), *program.arguments)
    return row


def run(options: Options, console: Console) -> None:
    """Say what takes more than in plain JAX; `--rounds 0` only compiles, for the memory."""
    rounds = 10 if options.rounds is None else options.rounds
    count, changes = 0, 0
    for name, entry in entries():
        if options.only not in name:
            continue
        rows = list(compared(name, entry, rounds))
        count += 1
        changes += sum(row.name.startswith(OURS) for row in rows)
        above = list(above_plain(rows))
        options.above += above
        notes = [f"{name}: {row.name}: {row.note}" for row in rows if row.note]
        for line in (*above, *notes):
            console.print(line, style="red" if line in above else "dim", markup=False)
    console.print(f"{count} programs, {changes} of their uses changed, {len(options.above)} above")
