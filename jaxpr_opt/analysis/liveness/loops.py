"""The loops that XLA makes of a program: the ops that each computes inside of it, and at how many
places.

A loop makes the elements of one array in memory, and what only it reads is computed inside of it.
For one element of the array it computes an op at one place for all readers that keep its shape or
move its axes, and at another place for each that does not: a slice, a pad, a concatenation.  XLA
computes no op inside where that makes its code too long, and none that puts arrays together if
there is a second place or reader: such an op is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from jaxpr_opt.cost import limits
from jaxpr_opt.cost.fusion import PUT_TOGETHER
from jaxpr_opt.ir.graph import Op, Use, Value

LoopKey = Hashable
"""A loop, by the op whose result it makes, or by that and the operand that it copies for it."""


@dataclass(slots=True, eq=False)
class Loops:
    """The ops that are looked at so far, the last op of the region first."""

    loop: Callable[[Op, Value], LoopKey | None]
    """That of a reader which computes a value inside; the reader if that is computed inside of
    others itself, None if it does not compute it inside."""
    places: dict[Op, Mapping[LoopKey, frozenset[Op]]] = field(default_factory=dict)
    """The loops that compute an op, and the readers at whose places each does."""
    count: dict[tuple[LoopKey, Op], int] = field(default_factory=dict)
    """At how many places a loop computes an op."""

    def made(self, op: Op) -> None:
        """An op's results are in memory."""
        self.places[op] = {**self.places.get(op, {}), op: frozenset({op})}
        self.count[op, op] = 1

    def of(self, value: Value, reads: Iterable[Use]) -> Mapping[LoopKey, frozenset[Op]] | None:
        """The loops that would compute a value inside; None if they cannot."""
        assert value.op is not None
        found, reads = dict[LoopKey, frozenset[Op]](), list(reads)
        for use in reads:
            loop = self.loop(use.op, value)
            if loop is None:  # it is an array, too
                self.count[value.op, value.op] = 1
                found[value.op] = frozenset({value.op})
                continue
            read = use.op.operands[use.position]
            keeps = read.shape == value.shape == use.op.results[0].shape
            own = frozenset({use.op})
            inside = self.places[use.op] if loop is use.op else {loop: own}
            if loop is not use.op:
                self.count[loop, use.op] = 1
            for each, users in inside.items():
                here = users if keeps or use.op.name == "transpose" else own
                found[each] = found.get(each, frozenset()) | here
        most = max((self._places(each, users) for each, users in found.items()), default=0)
        is_block = value.op.name in PUT_TOGETHER
        if most > limits.PLACES_FUSED or (is_block and (most > 1 or len(reads) > 1)):
            return None
        return found

    def inside(self, op: Op, found: Mapping[LoopKey, frozenset[Op]]) -> None:
        """An op is computed inside of loops only."""
        self.places[op] = {**self.places.get(op, {}), **found}
        self.count |= {(loop, op): self._places(loop, users) for loop, users in found.items()}

    def _places(self, loop: LoopKey, users: Iterable[Op]) -> int:
        return sum(self.count[loop, user] for user in users)
