"""For a value of a loop that reads stacks row by row, the value of the step that stacked them.

A value is `Known` on the stacking side if it exists there under another name: a row of a stack is
the value that was stacked, a row of an array that both loops stream is that row, and a value from
outside both is itself. Values computed from known ones can be computed on the stacking side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpr_opt.analysis.residuals.stack_consumers import Route, paired
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Op, Region, Scan, Value
from jaxpr_opt.ir.nesting import dominates
from jaxpr_opt.ir.traits import is_speculable


@dataclass(frozen=True, slots=True)
class Counterparts:
    """How to compute some values of a loop that reads in the loop that stacks."""

    names: dict[Value, Value]
    """The values that are there under another name."""
    ops: tuple[Op, ...]
    """What is computed from them, in order."""


def counterparts(scan: Scan, route: Route, wanted: Sequence[Value]) -> Counterparts | None:
    """The values of the forward step that `wanted` values at the end of a route equal; None if they
    are unknown.
    """
    pairs = paired(scan, route)
    if pairs is None:
        return None
    names: dict[Value, Value] = {}
    for there, here in pairs:
        known = _known(there)
        for stream in here.streams:
            found = known.get(_origin(stream.param))
            # Condition 2 of stack-read-windows.
            if found is not None and (there is scan or dominates(found, scan)):
                names[stream.param] = found
    around, nest = pairs[-1][0], pairs[-1][1].body

    def stop(value: Value) -> bool:
        return value in names or not nest.defines(value)

    ops = backward_slice(wanted, stop)
    # Condition 2 of stack-read-windows.
    if not all(is_speculable(op) and not op.regions and _is_small(op) for op in ops):
        return None
    made = {v for op in ops for v in op.results}
    leaves = {*wanted, *(v for op in ops for v in op.operands)} - made - names.keys()
    # Condition 2 of stack-read-windows.
    if not all(dominates(v, around) for v in leaves):
        return None
    return Counterparts(names, tuple(ops))


def names_around(scan: Scan, route: Route) -> dict[Value, Value]:
    """For the rows that loops around the end of a route read, the values that steps around the
    forward loop have stacked or streamed, before the loop or after it.
    """
    names: dict[Value, Value] = {}
    for there, here in (paired(scan, route) or ())[1:]:
        known = _known(there)
        rows = {stream.param: known.get(_origin(stream.param)) for stream in here.streams}
        names |= {row: found for row, found in rows.items() if found is not None}
    return names


def _known(scan: Scan) -> dict[tuple[Value, int], Value]:
    """The rows of streams of a loop, and what it stacks, by the array of all of them and the number
    of loops that take rows of it.
    """
    found = {_origin(stream.param): stream.param for stream in scan.streams}
    for stack in scan.stacks:
        found |= dict.fromkeys(_stacked(stack.result, 1), stack.value)
    return found


def _origin(row: Value) -> tuple[Value, int]:
    """The array that a row of rows is of, and how many loops take rows."""
    depth = 0
    while isinstance(owner := row.owner, Region) and isinstance(loop := owner.owner, Scan):
        stream = loop.stream_of(row)
        if stream is None:
            break
        row, depth = stream.operand, depth + 1
    return row, depth


def _stacked(array: Value, depth: int) -> list[tuple[Value, int]]:
    """A stack, and the stacks of it that loops around make."""
    found = [(array, depth)]
    for op, position in array.uses:
        around = op.parent
        if op.is_terminator and isinstance(around, Scan) and position >= around.num_carries:
            found += _stacked(around.results[position], depth + 1)
    return found


def _is_small(op: Op) -> bool:
    """Whether an op may be computed on both sides."""
    return all(cost_model().is_quick(value.nbytes) for value in op.results)
