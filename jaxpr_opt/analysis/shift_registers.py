"""Shift registers: carries of which a step drops rows at one end, and takes as many at the other.

::

    register before step t     A[t*s : t*s + W]        A = rows at the start, of step 0, 1, ...
    register after step t      A[(t+1)*s : (t+1)*s + W]

The register holds `W` rows along some axis, and `s` of them enter in a step. If they enter at the
start of the register, `A` begins with those of the last step. So `T*s + W` rows hold what a stack
of `T` registers does, and a loop that reads the stack row by row can read windows of `A`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jaxpr_opt.analysis.affine import Affine
from jaxpr_opt.analysis.cuts import available, residuals
from jaxpr_opt.analysis.facts import remembered
from jaxpr_opt.analysis.pieces import Piece, pieces, unshaped
from jaxpr_opt.analysis.stack_consumers import Route, Rows, Stacked, routes
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.ir import Carry, Scan, Value, is_sized

Reader = tuple[Route, Value]
"""The way to a loop that reads a stack, and the row that it reads in a step."""


@dataclass(frozen=True, slots=True, eq=False)
class Register:
    """What a carry of `scan` holds along an axis: what entered in the last steps."""

    scan: Scan
    carry: Carry
    axis: int
    size: int
    """How many rows enter in a step."""
    climbs: bool
    """Whether they enter at the end."""
    entering: tuple[Value, ...]
    """Values of a step of what enters, with more and with fewer axes of one; none if it is put
    together of several."""

    @property
    def held(self) -> int:
        """How many rows it holds."""
        return self.carry.param.shape[self.axis]

    @property
    def rows(self) -> int:
        """How many rows it ever holds."""
        return self.scan.length * self.size + self.held

    @property
    def nbytes(self) -> int:
        """Bytes of these."""
        return self.rows * (self.carry.param.nbytes // self.held)

    @property
    def entering_bytes(self) -> int:
        """Bytes of what enters in a step."""
        return self.size * (self.carry.param.nbytes // self.held)

    @property
    def present(self) -> Value | None:
        """What enters, if it is streamed or stacked already."""
        there = available(self.scan)
        return next((v for v in self.entering if v in there or self.scan.stream_of(v)), None)

    @property
    def is_turned(self) -> bool:
        """Whether steps enter the array of all rows in another order than they are stacked."""
        return self.climbs == self.scan.reverse

    def start(self, reader: Scan, *, after: bool) -> Affine:
        """Where in the array of all rows the register begins that a step of a loop reads: as it was
        before the step that it reads about, or after it.
        """
        steps = self.scan.length
        taken = Affine(0, (), {reader: 1})
        if self.scan.reverse:
            taken = Affine(steps - 1) - taken
        taken += Affine(int(after))
        return (taken if self.climbs else Affine(steps) - taken) * self.size


class State(NamedTuple):
    """A register as a step finds it, or as it leaves it."""

    register: Register
    after: bool


@remembered
def registers(scan: Scan) -> Mapping[Value, State]:
    """The values of a step that are registers."""
    found: dict[Value, State] = {}
    for carry in scan.carries:
        register = min(_shifts(scan, carry), key=lambda each: each.size, default=None)
        if register is not None:
            found |= {carry.param: State(register, False), carry.next: State(register, True)}
    return found


def _shifts(scan: Scan, carry: Carry) -> Iterator[Register]:
    """A carry as a register, in each way in which it is one."""
    # Condition 4 of stack-entering-rows.
    if carry.is_invariant or not is_sized(carry.param.shape):
        return
    for axis, held in enumerate(carry.param.shape):
        found = pieces(carry.next, axis)
        for climbs in (True, False) if len(found) > 1 else ():
            piece, others = (found[0], found[1:]) if climbs else (found[-1], found[:-1])
            size = held - piece.size
            # Condition 1 of stack-entering-rows.
            if piece == (carry.param, size if climbs else 0, held - size):
                entering = _alone(others, scan, carry.param.size // held * size)
                yield Register(scan, carry, axis, size, climbs, entering)


def _alone(entering: tuple[Piece, ...], scan: Scan, size: int) -> tuple[Value, ...]:
    """The one value of a step, of that size, that enters, with and without axes of one."""
    arrays = [piece.array for piece in entering]
    if len(arrays) > 1 or arrays[0].size != size:
        return ()
    return tuple(value for value in unshaped(arrays[0]) if scan.body.defines(value))


def window_readers(stacked: Value) -> tuple[Reader, ...] | str:
    """The loops that can read windows in place of rows of a stack of a register; or why there are
    others.
    """
    found = routes(stacked, nests=True)
    # Condition 2 of stack-entering-rows.
    if found is None:
        return f"{stacked.label} is needed whole"
    # Condition 2 of stack-entering-rows.
    if not all(_is_whole(route) for route, _ in found):
        return f"{stacked.label} is split before its rows are read"
    return found


def _is_whole(route: Route) -> bool:
    """Whether loops around the one that stacks stack again, and as many read rows of that."""
    around = sum(isinstance(hop, Stacked) for hop in route)
    kinds = [*[Stacked] * around, *[Rows] * (around + 1)]
    return [type(hop) for hop in route] == kinds


def needless(register: Register) -> str | None:
    """Why a stack of a register is better left as it is."""
    # Condition 3 of stack-entering-rows.
    if not dtypes.holds(np.int32, register.rows):
        return "it has more rows than an index can number"
    steps, prices = register.scan.length, cost_model()
    old, new = register.carry.param.nbytes * steps, register.nbytes
    if register.present is None and (register.is_turned or register.size > 1):
        new += register.entering_bytes * steps  # else `scan-in-place` puts it there
    if prices.is_quick(old):
        return "it is small"
    if not prices.is_longer(new, old):
        return "what enters is a good part of it"
    return None


@remembered
def stored_as_rows(scan: Scan) -> Mapping[Value, int]:
    """The registers of a step of which windows can take the place wherever residuals are read, and
    how many bytes a step stores for them.
    """
    if any(isinstance(window_readers(s.result), str) for s, _ in residuals(scan, nests=True)):
        return {}
    return {
        value: register.entering_bytes
        for value, (register, _) in registers(scan).items()
        if needless(register) is None
    }
