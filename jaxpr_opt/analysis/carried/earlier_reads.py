"""Reads of what a step has written that may come before the write."""

from __future__ import annotations

from jaxpr_opt.analysis.carried.buffers import is_read_for
from jaxpr_opt.analysis.sparse.disjoint_pieces import apart
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.analysis.writes.written_windows import further_writes, is_overwritten


def is_before(read: Access, write: Access) -> bool:
    """Whether a read may and should be of the array as it was before the write: the two windows are
    apart, and a step writes to the array again, but not over what was read for that: XLA updates it
    in place.
    """
    made = write.op.result
    # Condition 6 of forward-written-windows.
    may = apart(read.window, write.window) and made.exact_type == write.array.exact_type
    if not may or not is_overwritten(write):
        return False
    return not any(_is_updated(read, further) for further in further_writes(write))


def _is_updated(read: Access, write: Access) -> bool:
    """Whether a window is read to be written over only."""
    is_same = read.is_located and read.window == write.window
    return is_same and is_read_for(write.op, read.op)
