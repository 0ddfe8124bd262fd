"""The consumers of a stack: the loops that read it row by row, and the path of ops that leads to
each.

A forward loop stacks `[n, ...]`; a loop of as many steps reads it row by row. If the transpose is a
nest of loops, the array is first split, `[n, ...] -> [a, b, ...]`; the outer loop reads rows `[b,
...]` of it and the inner one rows of those. A `Route` records these hops, so that another array of
`n` rows can take the same path.

If the forward loop is itself inside a loop, that loop stacks the stacks, and the loop that reads
them is inside one that reads the outer stack row by row: a *nest*.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxpr_opt.bridge.parameters import is_in_order
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Scan, Use, Value


@dataclass(frozen=True, slots=True)
class SplitAxis:
    """The leading axis is reshaped into `sizes`; `op` does it, so that another array can be
    split next to it.
    """

    op: Op
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """`scan` reads it as a stream."""

    scan: Scan


@dataclass(frozen=True, slots=True)
class Stacked:
    """`scan`, in whose body the array is made, stacks it."""

    scan: Scan


Hop = SplitAxis | Rows | Stacked

Route = tuple[Hop, ...]

Pairs = tuple[tuple[Scan, Scan], ...]
"""The loops of a nest that stacks, each with the loop that reads its steps; the innermost first."""


def paired(scan: Scan, route: Route) -> Pairs | None:
    """The loops around the step that stacks, and around the one at the end of a route; None if what
    is stacked is split on the way.
    """
    forward = [scan, *(hop.scan for hop in route if isinstance(hop, Stacked))]
    backward = [hop.scan for hop in reversed(route) if isinstance(hop, Rows)]
    if len(forward) != len(backward) or len(forward) + len(backward) != len(route) + 1:
        return None
    return tuple(zip(forward, backward, strict=True))


@remembered
def routes(stacked: Value, *, nests: bool = False) -> tuple[tuple[Route, Value], ...] | None:
    """Every route from a stacked array to a row of it, with that row; None if it is read in any
    other way, or goes where nobody reads it.  Through loops around the one that stacks it only if
    `nests`.
    """
    row, found = stacked.shape[1:], list[tuple[Route, Value]]()
    pending: list[tuple[Route, Value]] = [((), stacked)]
    while pending:
        hops, array = pending.pop()
        if array.shape == row and hops:
            found.append((hops, array))
            continue
        ways = [way for use in array.uses if (way := _hop(use, row, nests)) is not None]
        if not ways or len(ways) < len(array.uses):
            return None
        pending += [((*hops, hop), there) for hop, there in reversed(ways)]
    return tuple(found)


def _hop(use: Use, row: tuple[int, ...], nests: bool) -> tuple[Hop, Value] | None:
    """Where a use of an array leads, if nearer to a row of it."""
    op = use.op
    # Condition 1 of narrow-residuals, replay-steps, stack-read-windows.
    if isinstance(op, Scan) and use.position >= op.num_carries:
        return Rows(op), op.body.params[use.position]
    around = op.parent
    if (
        nests
        and op.is_terminator
        and isinstance(around, Scan)
        and use.position >= around.num_carries
    ):
        return Stacked(around), around.results[use.position]
    # Condition 1 of narrow-residuals, replay-steps, stack-read-windows.
    if op.name != "reshape" or not is_in_order(op):
        return None
    # Only the leading axes may be reshaped: what they hold, a row, must stay whole.
    lead = len(op.result.shape) - len(row)
    # Condition 1 of narrow-residuals, replay-steps.
    if lead < 1 or op.result.shape[lead:] != row:
        return None
    return SplitAxis(op, op.result.shape[:lead]), op.result
