"""Reads of windows that have been written, or are made of what was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from jaxpr_opt.analysis.masks.parts import origin
from jaxpr_opt.analysis.sparse.shared_operands import shared
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.windows.access import Access, access, reads_window, writes_in_a_row
from jaxpr_opt.analysis.windows.coinciding import are_comparable, is_at_one_place, single_axes
from jaxpr_opt.analysis.windows.window_primitives import UPDATING, WRITES, is_same_window
from jaxpr_opt.bridge.parameters import fills
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import source_through
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.nesting import is_in_a_loop
from jaxpr_opt.ir.traits import ELEMENTWISE


def made_of_written(op: Op, made_by: Op) -> Access | None:
    """What an op reads in a loop, if elementwise ops make that array of others in which the same
    window was written, and of scalars; None if not.
    """
    read = access(op) if op.result.uses and is_in_a_loop(op) else None
    # Condition 5 of forward-written-windows.
    if read is None or fills(op):
        return None
    return read if op.region is made_by.region and _is_written(read, made_by) else None


def _is_written(read: Access, made_by: Op) -> bool:
    sizes = zip(read.sizes, read.array.shape, strict=True)
    whole = {axis for axis, (size, n) in enumerate(sizes) if size == n}
    pending, seen, is_found = [made_by.result], {made_by.result}, False
    while pending and len(seen) <= limits.OPS_OF_A_ROW:
        value = pending.pop()
        op = value.op
        # Condition 5 of forward-written-windows.
        if whole >= {*shared(value).axes}:
            continue
        # Condition 5 of forward-written-windows.
        if op is None or op.region is not made_by.region:
            return False
        if op.name in WRITES and is_same_window(read.op, op):
            is_found = True
            continue
        # Condition 5 of forward-written-windows.
        if op.name not in ELEMENTWISE:
            return False
        pending += [v for v in op.operands if v not in seen]
        seen.update(op.operands)
    return is_found and not pending


def is_around(read: Access, write: Access) -> bool:
    """Whether a read may and should go around a write."""
    may = are_comparable(read, write)  # (4)
    return may and not _is_more_than_array(read) and _is_only_read(write)


def is_overwritten(write: Access) -> bool:
    """Whether a step of a loop writes to a written array again, of more than a cache line: XLA may
    copy it for what is read in between.
    """
    small = cost_model().is_no_line(write.op.result.nbytes)
    return loop_of(write.op) is not None and not small and bool(further_writes(write))


def further_writes(write: Access) -> list[Access]:
    """The next writes to a written array."""
    array = write.op.result
    found = [each for user in array.users if (each := access(user)) is not None]
    return [each for each in found if each.kind != "read" and each.array is array]


def is_around_in_step(read: Access, write: Access) -> bool:
    """Whether a read of what a step of a loop has written should go around the write, as the step
    writes to that array again: XLA would read the window by itself, repeat the write there, and
    copy the array.
    """
    region, further = write.op.region, further_writes(write)
    # Condition 3 of read-around-writes.
    if not further or loop_of(write.op) is None or read.op.region is not region:
        return False
    writes = list(islice(_all_writes(write), limits.WRITES_OF_A_STEP + 1))
    # Condition 3 of read-around-writes.
    if len(writes) > limits.WRITES_OF_A_STEP:
        return False
    # Condition 1 of read-around-writes.
    if not are_comparable(read, write):
        return False
    # Condition 3 of read-around-writes.
    if not _comes_again(read, writes):
        return False
    axes = single_axes(read)
    pieces = math.prod(read.sizes[: max(axes, default=0)])
    is_plain = len(axes) == 1 and not _meets_branches(write)
    together = is_plain and any(is_at_one_place(read, each) for each in further)
    is_apart = cost_model().is_read_apart(pieces, write.op.result.nbytes, together=together)
    # Condition 3 of read-around-writes.
    return is_apart and not _is_more_than_array(read)


def _comes_again(read: Access, writes: list[Access]) -> bool:
    """Whether a step reads or writes the place of a read once more, but for reads of the same
    version and the write to it: XLA else makes one op of all writes, before which it reads.
    """
    others = [write for write in writes if write.array is not read.array]
    versions = {write.array for write in writes} | {write.op.result for write in writes}
    users = {user for version in versions - {read.array} for user in version.users}
    found = [each for user in users if (each := access(user)) is not None and each.kind == "read"]
    return any(is_at_one_place(read, each) for each in (*others, *found))


def _so_far(array: Value) -> Iterator[Access]:
    """The writes that have made an array, the last first."""
    return writes_in_a_row(array, None, {"write", "add"})


def _all_writes(write: Access) -> Iterator[Access]:
    """The writes of a step that lead to this one, and from it."""
    yield from _so_far(write.op.result)
    later = further_writes(write)
    while later:
        yield later[0]
        later = further_writes(later[0])


def _meets_branches(write: Access) -> bool:
    """Whether branches, or inner loops, read or make a version of the array in the same step."""
    made = source_through(write.array, lambda maker: maker.name in UPDATING)
    if made.op is not None and made.op.regions:
        return True
    pending = [write.op.result]
    for array in pending:
        if any(user.regions or user.region is not write.op.region for user in array.users):
            return True
        writes = (user for user in array.users if user.name in UPDATING)
        pending += [user.result for user in writes if user.operands[0] is array]
    return False


def _is_more_than_array(read: Access) -> bool:
    """Whether all windows that a read must go around are most of the array."""
    windows = 0
    for write in _so_far(read.array):
        windows += read.nbytes + write.nbytes
        if cost_model().is_most(windows, read.array.nbytes):
            return True
    return False


def _is_only_read(write: Access) -> bool:
    """Whether a written array, maybe written again, would be dropped but for what reads windows of
    it; or selected where it is written (`sink-select-into-update`).
    """
    windows, array = 0, write.op.result
    while not cost_model().is_most(windows, array.nbytes):
        onwards = [user for user in array.users if not reads_window(user, array)]
        if len(onwards) != 1:
            return not onwards
        (user,) = onwards
        if user.name == "select_n":
            origins = [origin(user, case) for case in range(len(user.operands) - 1)]
            return len(set(origins)) < len(origins)
        further = access(user)
        if further is None or further.array is not array:
            return False
        windows, array = windows + further.nbytes, user.result
    return False
