"""Which ops need to compute only some rows, because no others of what they lead to are read.

From the read backwards, an op needs to compute a part of its result if all its readers need the
same part; which part of its operands it then needs, `row_axes` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from jaxpr_opt.analysis.windows.row_axes import row_axis
from jaxpr_opt.analysis.windows.selections import Selection
from jaxpr_opt.ir.dataflow import Makers
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import CUMULATIVE, ELEMENTWISE, REDUCING

SHAPED = {"broadcast_in_dim": "shape", "reshape": "new_sizes"}
"""Ops of which a parameter is the shape of the result."""
_KEEPS_ROWS = frozenset({"concatenate", "dot_general", "rev", "sort", "squeeze", "transpose"})
_ALIKE = (ELEMENTWISE - {"name"}) | REDUCING | CUMULATIVE | _KEEPS_ROWS
"""Ops whose parameters are the same where they compute fewer rows."""

AxesOfPart = dict[int, int]
"""Of an array, the axes along which the parts lie, each with that axis of what the selection reads;
no axes: all of the array."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadRows:
    """Ops that need to compute some rows only, as a selection reads no others."""

    selection: Selection
    ops: dict[Op, tuple[AxesOfPart, ...]]
    """In program order; for each, the part of each operand that it needs."""
    needed: dict[Value, AxesOfPart]
    """The part of the result of each."""

    def shape(self, value: Value, part: AxesOfPart) -> tuple[int, ...]:
        """The shape of a part of an array."""
        sizes = self.selection.sizes
        return tuple(sizes.get(part.get(axis, -1), n) for axis, n in enumerate(value.shape))

    def copied(self) -> Iterator[tuple[Value, int, int]]:
        """The factors of products of which a part is copied, as they are made whole; with how many
        bytes it has, and how many bytes less the product makes.
        """
        for op, parts in self.ops.items():
            if op.name != "dot_general":
                continue
            spared = op.result.nbytes - self._nbytes(op.result, self.needed[op.result])
            for factor, part in zip(op.operands, parts, strict=True):
                if part and factor.op not in self.ops:
                    yield factor, self._nbytes(factor, part), spared

    def _nbytes(self, value: Value, part: AxesOfPart) -> int:
        return int(prod(self.shape(value, part)) * value.nbytes // max(value.size, 1))


def read_rows(selection: Selection) -> ReadRows | None:
    """The ops that lead to what a selection reads and need to compute only some rows; None if there
    are none.
    """
    region, found = selection.op.region, dict[Op, tuple[AxesOfPart, ...]]()
    needed = {selection.array: {axis: axis for axis in (*selection.sizes, *selection.batch)}}
    conflicts: set[Value] = set()
    pending = Makers(region)
    pending.add(selection.array)
    for op in pending:
        result = op.result
        if not needed[result]:
            continue
        users = (use.op for use in result.uses)
        is_read_alike = all(user is selection.op or user in found for user in users)
        # Condition 2 of compute-read-rows.
        if result in conflicts or not is_read_alike:
            continue
        parts = _parts(op, needed[result], selection)
        if parts is None:
            continue
        found[op] = parts
        for value, part in zip(op.operands, parts, strict=True):
            if needed.setdefault(value, part) != part:
                conflicts.add(value)
            pending.add(value)
    of_results = {op.result: needed[op.result] for op in found}
    return ReadRows(selection, dict(reversed(found.items())), of_results) if found else None


def _parts(op: Op, part: AxesOfPart, selection: Selection) -> tuple[AxesOfPart, ...] | None:
    """Which part of each operand the part of a result depends on; None if that is not known."""
    if op.name not in _ALIKE and op.name not in SHAPED:
        return None
    if any(map(is_sharded, (op.result, *op.operands))):
        return None
    found = []
    for position, value in enumerate(op.operands):
        axes = ((axis, row_axis(op, position, axis)) for axis in range(len(value.shape)))
        rows = {axis: part[to] for axis, to in axes if to is not None and to in part}
        if not any(at in selection.sizes for at in rows.values()):
            rows = {}
        # Condition 1 of compute-read-rows.
        elif tuple(at for at in rows.values() if at in selection.batch) != selection.batch:
            return None  # its rows are not those of the batch, or in another order
        found.append(rows)
    reached = {at for rows in found for at in rows.values()}
    # Condition 1 of compute-read-rows.
    is_known = op.name == "broadcast_in_dim" or reached == set(part.values())
    return tuple(found) if is_known else None
