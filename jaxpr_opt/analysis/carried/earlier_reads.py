"""Reads of what a step has written that may come before the write."""

from __future__ import annotations

from jaxpr_opt.analysis.carried.buffers import is_read_for
from jaxpr_opt.analysis.sparse.disjoint_pieces import apart
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.analysis.writes.written_windows import further_writes, is_overwritten
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.fusion import is_fused, reduces
from jaxpr_opt.ir.graph import Op


def is_before(read: Access, write: Access) -> bool:
    """Whether a read may and should be of the array as it was before the write: the two windows are
    apart, and a step writes to the array again, in an op that XLA fuses with the read, and not over
    what was read: it would copy the array. A read by itself comes before the next write as it is.
    """
    made = write.op.result
    # Condition 6 of forward-written-windows.
    may = apart(read.window, write.window) and made.exact_type == write.array.exact_type
    if not may or not is_overwritten(write):
        return False
    return not any(_comes_first(read, further) for further in further_writes(write))


def _comes_first(read: Access, write: Access) -> bool:
    """Whether XLA reads a window before a write that needs it, and fuses it with nothing else: the
    write is over what was read, or of what an op by itself makes of that.
    """
    is_same = read.is_located and read.window == write.window
    return (is_same or not _is_fused_with(read.op, write.op)) and is_read_for(write.op, read.op)


def _is_fused_with(read: Op, write: Op) -> bool:
    """Whether XLA reads inside the op that writes what comes of it."""
    pending, seen = [read], {read}
    while pending and len(seen) <= limits.OPS_OF_A_ROW:
        for user in {user for value in pending.pop().results for user in value.users}:
            if user is write:
                return True
            if user not in seen and (is_fused(user) or reduces(user)):
                seen.add(user)
                pending.append(user)
    return False
