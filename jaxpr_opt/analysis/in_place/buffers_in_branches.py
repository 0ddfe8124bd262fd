"""Buffers that branches of a cond update in place, if XLA does not copy them for it."""

from __future__ import annotations

from collections.abc import Iterator

from jaxpr_opt.analysis.carried.buffers import is_read_for
from jaxpr_opt.analysis.carried.overwritten import overwrites, reads_a_window
from jaxpr_opt.analysis.writes.branch_writes import is_for
from jaxpr_opt.ir.devices import copies_for_branches
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Region, Value


def buffers(cond: Cond) -> dict[Outcome, Value]:
    """The results that are an array from outside in each branch, as it was or with windows written
    to it, and that array.
    """
    found = {}
    for outcome in cond.outcomes:
        array, *others = dict.fromkeys(_base(value, cond) for value in outcome.values)
        # Condition 1 of write-in-branches.
        if array is None or others:
            continue
        if any(value is not array for value in outcome.values):
            found[outcome] = array
    return found


def _base(value: Value, cond: Cond) -> Value | None:
    """The array from outside that a branch writes windows to; None if it does more with it."""
    while cond.defines(value):
        writes = overwrites(value.op) if value.op is not None else ()
        array = next((write.array for write in writes if write.result is value), None)
        if array is None:
            return None
        value = array
    return value


def is_copied(array: Value, cond: Cond) -> bool:
    """Whether XLA copies a buffer that branches update: for any but the last of two before JAX
    0.11; if the step reads of it for something else; or a branch reads what it then overwrites.
    """
    *others, last = cond.branches
    if copies_for_branches() and (len(others) > 1 or not any(_overwrites(last, array))):
        return True
    around = [op for op in array.users if not any(b.contains(op.region) for b in cond.branches)]
    if any(reads_a_window(op) and not is_for(op, cond) for op in around if op is not cond):
        return True
    return any(_is_unordered(branch, array) for branch in cond.branches)


def _overwrites(branch: Region, array: Value) -> Iterator[Op]:
    return (user for user in array.users if user.region is branch and any(overwrites(user)))


def _is_unordered(branch: Region, array: Value) -> bool:
    """Whether a branch reads a version of an array that it overwrites, and XLA need not do so
    first.
    """
    pending = [array]
    while pending:
        version = pending.pop()
        here = [user for user in version.users if branch.contains(user.region)]
        for op in (user for user in here if user.region is branch):
            for write in overwrites(op):
                if write.array is version:
                    if any(user is not op and not is_read_for(op, user) for user in here):
                        return True
                    pending.append(write.result)
    return False
