"""Carries that change places from step to step, as two buffers of which each step reads one and
writes the other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import lcm

from jaxpr_opt.analysis.windows.window_primitives import UPDATING
from jaxpr_opt.ir.graph import Carry, Scan, Value


@dataclass(frozen=True, slots=True)
class Swapped:
    """Carries of a loop that take the places of others."""

    carries: tuple[Carry, ...]
    """Those that become another one, or a version of it that is made in place."""
    period: int
    """The number of steps after which each is in its place again, or dropped."""

    @property
    def nbytes(self) -> int:
        """The bytes that XLA copies in each step."""
        return sum(carry.param.nbytes for carry in self.carries)


def swapped_carries(scan: Scan) -> Swapped | None:
    """Which carries of a loop change places, if any.

    XLA keeps each carry in a buffer of its own, so it copies one that becomes another. It copies
    one that stays and becomes another, or becomes two, in any case.
    """
    carries = scan.carries
    places = {carry.param: place for place, carry in enumerate(carries)}
    earlier = [places.get(_overwritten(carry.next)) for carry in carries]
    becomes = Counter(earlier)
    # Condition 1 of unroll-swapped-carries.
    moves = {
        place: at
        for place, at in enumerate(earlier)
        if at is not None and at != place and becomes[at] == 1
    }
    if not moves:
        return None
    period = lcm(*(_steps(place, moves) for place in moves))
    return Swapped(tuple(carries[place] for place in moves), period)


def _overwritten(value: Value) -> Value:
    """The array that writes in place make a value of."""
    while (op := value.op) is not None and op.name in UPDATING:
        value = op.operands[0]
    return value


def _steps(place: int, moves: dict[int, int]) -> int:
    """The number of places through which an array goes that passes through this one: in a circle,
    or until it is dropped. `moves` says for each place from where its array comes.
    """
    onward = {at: place for place, at in moves.items()}
    count, first, last = 1, place, place
    while last in onward:
        last, count = onward[last], count + 1
        if last == place:
            return count - 1
    while first in moves:
        first, count = moves[first], count + 1
    return count
