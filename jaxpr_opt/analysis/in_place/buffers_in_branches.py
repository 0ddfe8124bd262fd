"""Buffers that branches of a cond update in place, if XLA does not copy them for it."""

from __future__ import annotations

from collections.abc import Iterator

from jaxpr_opt.analysis.carried.buffers import first_version, is_read_for
from jaxpr_opt.analysis.carried.overwritten import overwrites, reads_a_window
from jaxpr_opt.analysis.writes.branch_writes import is_for
from jaxpr_opt.ir.devices import copies_for_branches
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Region, Value
from jaxpr_opt.ir.nesting import with_parents


def buffers(cond: Cond) -> dict[Outcome, Value]:
    """The results that are an array from outside in each branch, as it was or with windows written
    to it, and that array.
    """
    found = {}
    for outcome in cond.outcomes:
        array, *others = dict.fromkeys(first_version(v, cond, _overwritten) for v in outcome.values)
        # Condition 1 of write-in-branches.
        if array is None or others:
            continue
        if any(value is not array for value in outcome.values):
            found[outcome] = array
    return found


def _overwritten(version: Value) -> Value | None:
    """What an op writes windows into to make a version."""
    writes = overwrites(version.op) if version.op is not None else ()
    return next((write.array for write in writes if write.result is version), None)


def is_copied(array: Value, cond: Cond) -> bool:
    """Whether XLA copies a buffer that branches update: before JAX 0.11 see `_is_copied_before`; if
    the step reads of it for something else; or a branch reads what it then overwrites.
    """
    if copies_for_branches() and any(_is_copied_before(array, c) for c in _around(array, cond)):
        return True
    around = [op for op in array.users if not any(b.contains(op.region) for b in cond.branches)]
    if any(reads_a_window(op) and not is_for(op, cond) for op in around if op is not cond):
        return True
    return any(_is_unordered(branch, array) for branch in cond.branches)


def _around(array: Value, cond: Cond) -> Iterator[Cond]:
    """A cond, and those around it, for which an array is one from outside."""
    for op in with_parents(cond):
        if not isinstance(op, Cond):
            return
        yield op
        if op.region is array.region:
            return


def _is_copied_before(array: Value, cond: Cond) -> bool:
    """Whether XLA copies a buffer for branches before JAX 0.11: for any but the last of two, and
    for two if one of them also reads a window.
    """
    *others, last = cond.branches
    if len(others) > 1 or not any(_overwrites(last, array)):
        return True
    users = [op for op in array.users if any(b.contains(op.region) for b in cond.branches)]
    is_in_both = all(any(_overwrites(branch, array)) for branch in cond.branches)
    return is_in_both and any(map(reads_a_window, users))


def _overwrites(branch: Region, array: Value) -> Iterator[Op]:
    return (op for op in array.users if branch.contains(op.region) and any(overwrites(op)))


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
