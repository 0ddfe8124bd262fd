"""How many rows of a stack are read: a mask after the loop drops rows, or an index picks some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxpr_opt.analysis.steps.zero_rows import compares_whole_numbers
from jaxpr_opt.analysis.windows.row_axes import axis_of_operand, row_axis
from jaxpr_opt.analysis.windows.row_readers import made_before
from jaxpr_opt.analysis.windows.window_primitives import component_of
from jaxpr_opt.bridge.parameters import slice_sizes_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Scan, Stack, Use, Value
from jaxpr_opt.ir.traits import can_move


@dataclass(frozen=True, slots=True, eq=False)
class MaskedRows:
    """Rows of which only those are read that a mask chooses, where it is `case`."""

    mask: Value
    axis: int
    """The axis of the mask along which the rows lie."""
    case: int


@dataclass(frozen=True, slots=True, eq=False)
class PickedRows:
    """Rows of which only some are read, from places that an array of whole numbers says."""

    places: Value
    component: int | None
    """Which component of the places; None if they have one."""
    size: int
    """How many rows are read at each place."""


End = MaskedRows | PickedRows


def read_ends(scan: Scan, stack: Stack) -> tuple[End, ...] | None:
    """What says, before a loop, how far the rows of a stack are read; None if nothing does."""
    ends: list[End] = []
    pending = [(stack.result, 0)]
    for value, axis in pending:
        for use in value.uses:
            end = _end(use, axis, scan)
            if end is not None:
                ends.append(end)
                continue
            # Condition 2 of end-at-read-rows.
            made = list(_rows_of(use, axis, scan))
            if not made or len(pending) > limits.OPS_OF_A_ROW:
                return None
            pending += [each for each in made if each not in pending]
    return tuple(ends)


def _rows_of(use: Use, axis: int, scan: Scan) -> Iterator[tuple[Value, int]]:
    """What an op makes of each row by itself, and the axes along which those rows lie."""
    op = use.op
    if op.region is scan.region and not op.regions and not op.is_terminator and can_move(op):
        to = row_axis(op, use.position, axis)
        yield from ((result, to) for result in op.results if to is not None)


def _end(use: Use, axis: int, scan: Scan) -> End | None:
    """What an op tells of the rows that it reads."""
    found = _masked(use, axis) if use.op.name == "select_n" else _picked(use, axis)
    if found is None or use.op.region is not scan.region:
        return None
    # Condition 3 of end-at-read-rows.
    told = found.mask if isinstance(found, MaskedRows) else found.places
    return found if made_before(told, scan) is not None else None


def _masked(use: Use, axis: int) -> MaskedRows | None:
    mask = use.op.operands[0]
    if use.position == 0 or mask.shape != use.op.result.shape:
        return None
    while mask.op is not None and mask.op.name == "broadcast_in_dim":
        inner = axis_of_operand(mask.op, 0, axis)
        if inner is None:
            return None
        mask, axis = mask.op.operands[0], inner
    return MaskedRows(mask, axis, use.position - 1) if compares_whole_numbers(mask) else None


def _picked(use: Use, axis: int) -> PickedRows | None:
    op = use.op
    if use.position != 0 or op.name not in ("dynamic_slice", "gather"):
        return None
    size = slice_sizes_of(op)[axis]
    where, component = component_of(op, axis)
    is_slice = op.name == "dynamic_slice"
    is_told = size < op.operands[0].shape[axis] if is_slice else component is not None
    places = op.operands[where]
    # Condition 4 of end-at-read-rows.
    return PickedRows(places, component, size) if is_told and places.dtype == np.int32 else None
