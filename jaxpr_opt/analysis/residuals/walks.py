"""The loops that read the versions of a buffer, and how the buffer gets back through them.

A loop that reads versions starts with the last one of the loop that writes. If that is inside
another loop, and a step of this one changes the buffer in no other way, the loop around the readers
carries the buffer as well: what one of its steps leaves, once all writes are undone, is what the
step before it began with. Else the last version of each step is stacked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from jaxpr_opt.analysis.residuals.stack_consumers import Pairs, Route, paired, routes
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.analysis.values.renaming import original
from jaxpr_opt.ir.graph import Carry, Scan, Stack, Value


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """A loop that reads versions, and the loops around it."""

    route: Route
    pairs: Pairs
    """The loops that write, each with the one that reads; the innermost first."""
    rows: Mapping[Value, Stack]
    """The versions that are read in a step, each with its stack."""
    carries: tuple[Carry, ...]
    """The buffer in the innermost loop that writes, and in those around it that change it in no
    other way: the loops that read may carry it back.
    """

    @property
    def reader(self) -> Scan:
        """The loop that reads versions."""
        return self.pairs[0][1]

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many steps each of the loops takes."""
        return tuple(there.length for there, _ in self.pairs)

    @property
    def starts(self) -> int:
        """How many last versions are stacked, as not all loops carry the buffer back."""
        beyond = self.lengths[len(self.carries) :]
        return prod(beyond) if beyond else 0

    def steps_with(self, value: Value) -> int:
        """How often a value is computed; not at all outside of all loops."""
        inside = [there.body.defines(value) for there, _ in self.pairs]
        return prod(self.lengths[inside.index(True) :]) if any(inside) else 0


def walks(scan: Scan, carry: Carry, stacks: Iterable[Stack], name: str) -> tuple[Walk, ...] | str:
    """The loops that read stacked versions of a carry row by row, from the last one written to the
    first; a string says why there are others.
    """
    found: dict[Route, dict[Value, Stack]] = {}
    for stack in stacks:
        ways = routes(stack.result, nests=True)
        # Condition 2 of undo-carried-writes.
        if ways is None:
            return f"the stack of {name} is not only read row by row"
        for route, row in ways:
            found.setdefault(route, {})[row] = stack
    made = []
    for route, rows in found.items():
        pairs = paired(scan, route)
        # Condition 2 of undo-carried-writes.
        if pairs is None:
            return f"the stack of {name} is split before it is read"
        # Condition 2 of undo-carried-writes.
        if pairs[0][1].reverse == scan.reverse:
            return f"the stack of {name} is read in the order in which it is written"
        made.append(Walk(route, pairs, rows, _carried(carry, pairs)))
    # Condition 2 of undo-carried-writes.
    if len({walk.reader for walk in made}) < len(made):
        return f"one loop reads versions of {name} from different steps"
    return tuple(made)


def _carried(carry: Carry, pairs: Pairs) -> tuple[Carry, ...]:
    """A carry, and those of the loops around that only the loop inside changes, as far as the loops
    that read take all their steps, in the opposite order.
    """
    found = [carry]
    for (_, reader), (there, here) in pairwise(pairs):
        inner = found[-1]
        around = next((c for c in there.carries if c.param is original(inner.init)), None)
        # Condition 5 of undo-carried-writes.
        if around is None or original(around.next) is not inner.result:
            break
        # Condition 5 of undo-carried-writes.
        if here.reverse == there.reverse or reader.region is not here.body:
            break
        # Condition 5 of undo-carried-writes.
        if find_skip(here) is not None:
            break
        found.append(around)
    return tuple(found)
