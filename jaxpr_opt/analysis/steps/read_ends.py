"""How many rows of a stack are read: a mask after the loop drops rows, or an index picks some.

A transposed loop in reverse reads rows of what it is the transpose of. It makes nothing of them
until it comes to a cotangent that is not zero, and of these, too, a mask or an index says which
rows are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jaxpr_opt.analysis.rows.row_axes import axis_of_operand, row_axis
from jaxpr_opt.analysis.rows.row_readers import made_before
from jaxpr_opt.analysis.steps.masked_rows import zeros_of
from jaxpr_opt.analysis.steps.skips import Skip, all_taken, stays
from jaxpr_opt.analysis.steps.splats import Splat, zero_of
from jaxpr_opt.analysis.steps.zero_rows import compares_whole_numbers
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.linearity import carries_cotangents
from jaxpr_opt.analysis.windows.window_primitives import component_of, window_sizes
from jaxpr_opt.bridge.parameters import slice_sizes_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Scan, Stack, Use, Value
from jaxpr_opt.ir.traits import VIEWING, can_move

_MOVING = VIEWING | {"convert_element_type", "copy", "neg"}
_WRITES = frozenset({"dynamic_update_slice", "scatter", "scatter-add"})
_SUMS = frozenset({"add", "add_any", "sub"})


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


Place = MaskedRows | PickedRows


@dataclass(frozen=True, slots=True, eq=False)
class RowsBack:
    """Rows that a transposed loop reads from the last one on of which a cotangent is not zero."""

    skip: Skip
    """The loop, as one that takes all steps but the first ones, of zeros."""
    ends: tuple[Place, ...]
    """What says where the cotangents are not zeros."""


End = MaskedRows | PickedRows | RowsBack


def read_ends(scan: Scan, stack: Stack) -> tuple[End, ...] | None:
    """What says, before a loop, how far the rows of a stack are read; None if nothing does."""
    ends: list[End] = []
    pending = [(stack.result, 0)]
    for value, axis in pending:
        for use in value.uses:
            end = _end(use, axis, scan) or _read_back(use, axis, scan)
            if end is not None:
                ends.append(end)
                continue
            # Condition 2 of end-at-read-rows.
            made = list(_rows_of(use, axis, scan))
            if not made or len(pending) > limits.OPS_OF_A_ROW:
                return None
            pending += [each for each in made if each not in pending]
    return tuple(ends)


def _read_back(use: Use, axis: int, scan: Scan) -> RowsBack | None:
    """How a transposed loop reads rows, if it is known before the other from which one on."""
    loop = use.op
    # Condition 8 of end-at-read-rows.
    if not isinstance(loop, Scan) or axis != 0 or use.position < loop.num_carries:
        return None
    return _begun(loop, scan)


@remembered
def _begun(loop: Scan, scan: Scan) -> RowsBack | None:
    """How a transposed loop makes nothing of its first rows, if it is known before another one how
    many these are.
    """
    # Condition 8 of end-at-read-rows.
    if not loop.reverse or not carries_cotangents(loop):
        return None
    told = {s.param: _zero_ends(s.operand, 0, scan) for s in loop.streams}
    ends = tuple(end for found in told.values() for end in found)
    if not ends:
        return None
    skip = all_taken(loop, {param: zero_of(param) for param, found in told.items() if found})
    # Condition 9 of end-at-read-rows.
    is_number = all(isinstance(skip.skipped[s.value], Splat) for s in loop.stacks)
    stays_so = is_number and stays(loop, skip.skipped, skip.counters)
    return RowsBack(skip, ends) if stays_so else None


def _zero_ends(array: Value, axis: int | None, scan: Scan, depth: int = 0) -> tuple[Place, ...]:
    """What says, before a loop, which rows of cotangents may be other than zeros; none if nothing
    does.
    """
    op = array.op
    if op is None or axis is None or depth > limits.OPS_OF_A_ROW:
        return ()
    # Condition 10 of end-at-read-rows.
    for mask, at, zeros in zeros_of(array, axis):
        found = _by_mask(mask, at, 1 if zeros[0] == 0 else 0)
        if found is not None and made_before(found.mask, scan) is not None:
            return (found,)
    if op.name in _WRITES and uniform(op.operands[0]) == 0:
        where, component = component_of(op, axis)
        places, size = op.operands[where], window_sizes(op)[axis]
        is_one = op.name == "dynamic_update_slice" or component is not None
        is_told = is_one and places.dtype == np.int32 and made_before(places, scan) is not None
        return (PickedRows(places, component, size),) if is_told else ()
    if op.name not in _SUMS and op.name not in _MOVING:
        return ()
    parts = [
        _zero_ends(v, axis_of_operand(op, place, axis), scan, depth + 1)
        for place, v in enumerate(op.operands)
    ]
    # Condition 10 of end-at-read-rows.
    return tuple(end for part in parts for end in part) if all(parts) else ()


def _rows_of(use: Use, axis: int, scan: Scan) -> Iterator[tuple[Value, int]]:
    """What an op makes of each row by itself, and the axes along which those rows lie."""
    op = use.op
    if op.region is scan.region and not op.regions and not op.is_terminator and can_move(op):
        to = row_axis(op, use.position, axis)
        yield from ((result, to) for result in op.results if to is not None)


def _end(use: Use, axis: int, scan: Scan) -> Place | None:
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
    return _by_mask(mask, axis, use.position - 1)


def _by_mask(mask: Value, axis: int, case: int) -> MaskedRows | None:
    """The rows that a mask chooses, if it compares whole numbers."""
    while mask.op is not None and mask.op.name == "broadcast_in_dim":
        inner = axis_of_operand(mask.op, 0, axis)
        if inner is None:
            return None
        mask, axis = mask.op.operands[0], inner
    return MaskedRows(mask, axis, case) if compares_whole_numbers(mask) else None


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
