"""Shift registers: carries of which a step drops rows at one end, and takes as many at the other.

::

    register before step t     A[t*s : t*s + W]        A = rows at the start, of step 0, 1, ...
    register after step t      A[(t+1)*s : (t+1)*s + W]

The register holds `W` rows along some axis, and `s` of them enter in a step. If they enter at the
start of the register, `A` begins with those of the last step. So `T*s + W` rows hold what a stack
of `T` registers does, and a loop that reads the stack row by row can read windows of `A`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.analysis.carried.row_sources import SourceRows, pieces, unshaped
from jaxpr_opt.analysis.values.affine import Affine
from jaxpr_opt.ir.graph import Carry, Scan, Value, is_sized


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


def shifting(scan: Scan) -> Iterator[Register]:
    """The carries of a loop that are shift registers."""
    for carry in scan.carries:
        found = min(_shifts(scan, carry), key=lambda each: each.size, default=None)
        if found is not None:
            yield found


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


def _alone(entering: tuple[SourceRows, ...], scan: Scan, size: int) -> tuple[Value, ...]:
    """The one value of a step, of that size, that enters, with and without axes of one."""
    arrays = [piece.array for piece in entering]
    if len(arrays) > 1 or arrays[0].size != size:
        return ()
    return tuple(value for value in unshaped(arrays[0]) if scan.body.defines(value))
