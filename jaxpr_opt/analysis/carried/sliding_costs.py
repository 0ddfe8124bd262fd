"""The cost of stacking the rows of a carried buffer, against that of updating it in place."""

from __future__ import annotations

from math import prod

from jaxpr_opt.analysis.carried.buffers import (
    Buffer,
    copied_by,
    is_made_by_a_loop,
    is_read_for,
    is_read_outside,
)
from jaxpr_opt.analysis.carried.sliding import Window
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.enclosing import is_differentiated
from jaxpr_opt.analysis.values.renaming import original
from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.bridge.parameters import dimension_of
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.fusion import PUT_TOGETHER
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.devices import fence
from jaxpr_opt.ir.graph import Scan


def why_left_in_place(scan: Scan, found: Buffer, window: Window) -> str | None:
    """Why the array should stay as it is: XLA updates it in place, and would otherwise make two."""
    carry = found.carry
    name, differentiated = carry.param.name or "the buffer", is_differentiated(scan)
    prices, is_by_rows = cost_model(), _is_touched_by_rows(found, window)
    if not is_by_rows and prices.moved(2 * carry.param.nbytes) <= prices.started(window.kept):
        return f"XLA copies {name} as fast as {window.kept} of its rows are carried"
    if copied_by(found) is not None and (
        differentiated or _is_stacked(scan, found) or not _is_fenced(found)
    ):
        return None
    is_held = not differentiated and is_made_by_a_loop(carry.init)
    streamed = f"XLA already updates {name} in place; streamed rows would be copied"
    if not window.is_put_together(carry.param.shape):
        return streamed if is_held and window.entering else None
    small = prices.is_quick(carry.param.nbytes) and is_by_rows
    if differentiated and (small or not window.kept):
        return None
    if is_read_outside(carry.result, window.axis, window.held):
        return f"XLA already updates {name} in place; stacked rows would be copied into it"
    if is_held:
        return streamed
    if differentiated or _comes_apart(found, window):
        return None
    if is_partly_written(found, window.axis):
        return f"XLA already updates {name} in place; streaming would move whole rows"
    return None


def _is_stacked(scan: Scan, found: Buffer) -> bool:
    """Whether the loop stacks anyway what it writes."""
    writes = [each.value for each in found.accesses if each.kind == "write"]
    return any(stack.value in writes for stack in scan.stacks)


def _is_fenced(found: Buffer) -> bool:
    """Whether a fence orders all reads before the writes in the end, so that XLA copies nothing."""
    return fence() is not None and all(a.op.region is found.loop.body for a in found.accesses)


def _is_touched_by_rows(found: Buffer, window: Window) -> bool:
    """Whether no access is to several rows at once."""
    return all(len(window.pieces(each)) == 1 for each in found.accesses)


def _comes_apart(found: Buffer, window: Window) -> bool:
    """Whether rows that stay are put together for the loop only, and taken apart after it."""
    axis, made = window.axis, original(found.carry.init).op
    if window.entering or made is None or made.name not in PUT_TOGETHER:
        return False
    along = dimension_of(made)
    whole = found.carry.result
    reads = [access(user) for user in whole.users]
    in_rows = all(r is not None and r.array is whole and r.sizes[axis] == 1 for r in reads)
    return in_rows and along == axis and len(made.operands) == window.size


def is_partly_written(found: Buffer, axis: int) -> bool:
    """Whether a step writes only a part of a row."""
    across = [n for d, n in enumerate(found.carry.param.shape) if d != axis]
    return any(
        [e.size for d, e in enumerate(each.window) if d != axis] != across
        for each in found.accesses
        if each.kind != "read"
    )


def why_too_costly(found: Buffer, window: Window, name: str) -> str | None:
    """Why the rows of the window are too many, or too large, to be values of a step."""
    if window.kept > limits.ROWS_CARRIED:
        return f"{window.kept} rows of {name} would be carried: too many"
    if window.entering > limits.ROWS_CARRIED:
        return f"each step would split and join {window.entering} rows of {name}"
    block = prod(window.block(found.carry.param.shape))
    is_wide = not cost_model().is_better_stacked(block * found.carry.param.dtype.itemsize)
    if is_wide and not window.kept and _is_added_to(found):
        return f"XLA adds to the rows of {name} in place"
    touched = sum(prod(access.sizes) for access in found.accesses)
    if not cost_model().is_dense(touched, block * (window.size // window.unit)):
        return f"a row of {name} is much larger than the part that is read and written"
    return None


def _is_added_to(found: Buffer) -> bool:
    """Whether a row is read for the write that follows only, or starts as zero."""
    if uniform(found.carry.init) == 0:
        return True
    (*reads, last) = found.accesses
    return last.kind != "read" and all(
        each.kind == "read" and is_read_for(last.op, each.op) for each in reads
    )
