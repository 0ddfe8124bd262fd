"""A `while` loop with reverse mode: it stores the carries of some steps and recomputes the others.

JAX cannot differentiate ``lax.while_loop`` backwards, because the number of carries to store is
unknown. Here a fixed number of rows stores them. When all rows are taken, the next carry replaces
one that is *dispensable*: of a lower level than a later one. If there is none, it replaces the
latest, and gets the next level: earlier ones of the old level are dispensable now. The transposed
loop takes the steps in reverse order. It starts with the latest stored carry, runs forward to the
carry it needs, and stores carries on the way by the same rule, in the rows that are free again.

With `r` rows, a gradient computes each step once in the forward pass, once where the step is
differentiated, and ``k`` times on the way to other steps if the loop takes at most ``binomial(r +
k, k + 1)`` steps: none up to `r` steps, one up to ``r (r + 1) / 2``, and so on.

Source: Q. Wang, P. Moin, G. Iaccarino, Minimal repetition dynamic checkpointing algorithm for
unsteady adjoint calculation, SIAM J. Sci. Comput. 31 (2009).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxpr_opt.bridge import compat, compat_ad, compat_types, dtypes
from jaxpr_opt.bridge.compat_ad import Mask, merged
from jaxpr_opt.bridge.slicing import read_row, write_row

Values = list[Any]
Step = Callable[[Sequence[Any], Sequence[Any]], Values]
"""``(constants, carries) -> carries``"""
Predicate = Callable[[Sequence[Any], Sequence[Any]], Any]
"""``(constants, carries) -> bool[]``"""


def while_loop(
    goes_on: Predicate, step: Step, constants: Sequence[Any], init: Sequence[Any], rows: int
) -> Values:
    """``lax.while_loop`` that can be differentiated backwards with respect to `constants` and
    `init`; of at most `rows` steps, at least 2, carries are kept.
    """
    if _is_only_run():
        own = [*init]
        return lax.while_loop(lambda c: goes_on(constants, c), lambda c: step(constants, c), own)
    plain = _only_run(step)

    @jax.custom_vjp
    def loop(constants: Values, init: Values) -> Values:
        return lax.while_loop(lambda c: goes_on(constants, c), lambda c: plain(constants, c), init)

    def forward(constants: Any, init: Any) -> tuple[Values, _Kept]:
        marks = tuple(map(_is_moving, constants)), tuple(map(_is_moving, init))
        constants, init = [x.value for x in constants], [x.value for x in init]

        def further(state: tuple[Any, Values, Memory]) -> tuple[Any, Values, Memory]:
            taken, carry, memory = state
            return taken + 1, plain(constants, carry), memory.with_carry(taken, carry)

        taken, carry, memory = lax.while_loop(
            lambda state: goes_on(constants, state[1]),
            further,
            (np.int32(0), init, Memory.of(init, rows)),
        )
        return carry, _Kept(taken, memory, constants, _moving(plain, constants, init, marks))

    loop.defvjp(forward, functools.partial(_pulled_back, step), symbolic_zeros=True)
    return loop(list(constants), list(init))


_running = threading.local()


def _is_only_run() -> bool:
    """Whether what is traced now is not differentiated backwards."""
    return getattr(_running, "plainly", False)


def _only_run(step: Step) -> Step:
    """A step that nothing differentiates backwards: a loop in it is JAX's own, which has a forward
    mode.
    """

    def run(constants: Sequence[Any], carries: Sequence[Any]) -> Values:
        before, _running.plainly = _is_only_run(), True
        try:
            return step(constants, carries)
        finally:
            _running.plainly = before

    return run


class Schedule(NamedTuple):
    """Of which steps the carries are kept, and where; the first `count` places are in use, in the
    order of the steps.
    """

    rows: Any
    """int32[r]: the row of each place; those of free places are free."""
    steps: Any
    """int32[r]: the step of each place."""
    levels: Any
    """int32[r]: the level of each place."""
    count: Any
    raised: Any
    """The latest place of a level more than others before it, which are dispensable, as they are of
    a lower level; 0 if there is none."""
    level: Any
    """The level of what is kept next."""

    @classmethod
    def of(cls, rows: int) -> Schedule:
        """The schedule before the first step, whose carry nothing may replace."""
        places, zero = lax.iota(np.int32, rows), np.int32(0)
        none = lax.full_like(places, 0)
        return cls(places, none, none, zero, zero, np.int32(_HIGHEST))

    def with_step(self, step: Any) -> Schedule:
        """The schedule once the carry of a step, later than all, is kept at its last place."""
        made: Schedule = lax.cond(
            self.count == self.rows.shape[0], Schedule._with_room, _same, self
        )
        place = made.count
        return made._replace(
            steps=made.steps.at[place].set(step),
            levels=made.levels.at[place].set(made.level),
            count=place + 1,
            level=np.int32(0),
        )

    def _with_room(self) -> Schedule:
        """One place less in use: that of a dispensable carry, else that of the latest."""
        last, places = len(self.rows) - 1, lax.iota(np.int32, len(self.rows))
        before = places < self.raised
        as_high = jnp.sum(before & (self.levels >= self.levels[self.raised]), dtype=np.int32)
        is_dispensable = as_high < self.raised
        left = jnp.where(is_dispensable, as_high, last)
        order = jnp.where(places < left, places, jnp.where(places < last, places + 1, left))
        return Schedule(
            self.rows[order],
            self.steps[order],
            self.levels[order],
            count=np.int32(last),
            raised=jnp.where(is_dispensable, self.raised - 1, last),
            level=jnp.where(is_dispensable, 0, self.levels[last] + 1),
        )

    def without_last(self) -> Schedule:
        """The schedule with the row of its latest carry free."""
        place = self.count - 1
        return self._replace(count=place, raised=jnp.where(self.raised == place, 0, self.raised))

    @property
    def last_step(self) -> Any:
        return self.steps[self.count - 1]

    @property
    def last_row(self) -> Any:
        return self.rows[self.count - 1]


_HIGHEST = np.iinfo(np.int32).max


def _same(schedule: Schedule) -> Schedule:
    return schedule


class Memory(NamedTuple):
    """Carries that are kept."""

    schedule: Schedule
    rows: Values
    """Each carry with a leading axis: rows of different steps."""

    @classmethod
    def of(cls, init: Sequence[Any], rows: int) -> Memory:
        return cls(Schedule.of(rows), [lax.broadcast(x, (rows,)) for x in init])

    def with_carry(self, step: Any, carry: Sequence[Any]) -> Memory:
        """With the carry of a step, later than all that are kept."""
        schedule = self.schedule.with_step(step)
        row = schedule.last_row
        rows = [write_row(r, x, row) for r, x in zip(self.rows, carry, strict=True)]
        return Memory(schedule, rows)

    def last(self) -> tuple[Any, Values]:
        """The latest step and its carry."""
        row = self.schedule.last_row
        return self.schedule.last_step, [read_row(each, row) for each in self.rows]

    def without_last(self) -> Memory:
        return self._replace(schedule=self.schedule.without_last())


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Kept:
    """What the forward pass keeps for the backward pass."""

    taken: Any
    """int32[]: the number of steps."""
    memory: Memory
    constants: Values
    moving: tuple[Mask, Mask] = field(metadata={"static": True})
    """Which constants are differentiated, and which carries depend on what is."""


def _is_moving(given: Any) -> bool:
    """Whether a value is differentiated; an integer that may be has no cotangent."""
    return bool(given.perturbed) and dtypes.is_inexact(given.value.dtype)


def _moving(
    step: Step, constants: Values, init: Values, perturbed: tuple[Mask, Mask]
) -> tuple[Mask, Mask]:
    """Which constants are differentiated, and which carries depend on such, at any step."""
    of_constants, of_carry = perturbed
    n = len(constants)
    avals = [compat_types.aval_of(x) for x in (*constants, *init)]
    jaxpr = compat.trace(lambda *args: step(args[:n], args[n:]), avals)
    while True:
        _, moved = compat_ad.jvp(jaxpr, (*of_constants, *of_carry))
        further = tuple(a or b for a, b in zip(of_carry, moved, strict=True))
        if further == of_carry:
            return of_constants, of_carry
        of_carry = further


def _pulled_back(step: Step, kept: _Kept, cotangents: Sequence[Any]) -> tuple[Values, Values]:
    """The cotangents of constants and first carry; None for those that have none."""
    of_constants, of_carry = kept.moving

    def step_back(state: tuple[Any, Memory, Values, Values]) -> tuple[Any, Memory, Values, Values]:
        left, memory, pulled, sums = state
        memory, carry = _reached(_only_run(step), kept.constants, memory, left - 1)

        def moved(constants: Values, carries: Values) -> Values:
            out = step(
                merged(of_constants, constants, kept.constants), merged(of_carry, carries, carry)
            )
            return _chosen(of_carry, out)

        _, pull = jax.vjp(moved, _chosen(of_constants, kept.constants), _chosen(of_carry, carry))
        terms, pulled = pull(pulled)
        return left - 1, memory.without_last(), pulled, list(map(jnp.add, sums, terms))

    given = [_instantiated(ct) for ct in _chosen(of_carry, cotangents)]
    sums = [
        compat_ad.zeros(compat_types.aval_of(x).to_ct_aval())
        for x in _chosen(of_constants, kept.constants)
    ]
    _, _, pulled, sums = lax.while_loop(
        lambda state: state[0] > 0, step_back, (kept.taken, kept.memory, given, sums)
    )
    return _spread(of_constants, sums), _spread(of_carry, pulled)


def _reached(step: Step, constants: Values, memory: Memory, wanted: Any) -> tuple[Memory, Values]:
    """Run forward to the carry of a step, from the latest that is kept."""

    def further(state: tuple[Any, Memory, Values]) -> tuple[Any, Memory, Values]:
        at, memory, carry = state
        carry = step(constants, carry)
        return at + 1, memory.with_carry(at + 1, carry), carry

    at, carry = memory.last()
    _, memory, carry = lax.while_loop(lambda state: state[0] < wanted, further, (at, memory, carry))
    return memory, carry


def _instantiated(cotangent: Any) -> Any:
    return compat_ad.zeros(cotangent.aval) if isinstance(cotangent, SymbolicZero) else cotangent


def _chosen(mask: Mask, values: Sequence[Any]) -> Values:
    return [value for on, value in zip(mask, values, strict=True) if on]


def _spread(mask: Mask, chosen: Sequence[Any]) -> Values:
    return merged(mask, chosen, [None] * len(mask))
