"""Write to a window of an array, not to a copy of the window that is then put back.

Before::

    r = dynamic_slice a l 0 0
    w = dynamic_update_slice r v 0 t 0
    y = f w
    b = dynamic_update_slice a w l 0 0

After::

    b = dynamic_update_slice a v l t 0
    w = dynamic_slice b l 0 0
    y = f w

Sound when

1. the window that is put back is the one that was read: of the same sizes, at the same place,
   which is in range, or clamped alike in both;
2. nothing has changed the window since: other writes are apart from it;
3. what is written to has the axes of the window, in order, but for those of size 1;
4. along each axis, the window or what is written to it is whole, so that either is clamped or
   dropped where it is out of range, as before; the dtype of the indices holds every position, and
   all places that are clamped have it;
5. what reads the written window, or puts it back, comes after what is written to.

Cost: the window is not copied, and a loop writes what has changed in place, where nothing else
reads what was there before: not the window, and of the array only what comes before the write, or
what is apart from it, which is then read of the new array.
Source: the caches of all layers of a decoder in one array, of which each layer takes its own,
writes one position, attends to it, and puts it back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from jaxpr_opt.analysis.carried.overwritten import comes_late
from jaxpr_opt.analysis.sparse.disjoint_pieces import apart
from jaxpr_opt.analysis.windows.access import Access, access, reads_window
from jaxpr_opt.analysis.windows.window_primitives import indexed_axes
from jaxpr_opt.analysis.writes.nested import Nested, nested
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import has_numbers
from jaxpr_opt.builders.writes.whole_writes import written_to_whole
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.nesting import dominates, is_not_before
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class PutBack(Match):
    """A write to a window of an array, which is then put back."""

    nested: Nested


@dataclass(frozen=True)
class WriteToWholeArrays(Pass[PutBack]):
    """Read a window, write to it, put it back -> write to the array."""

    name: ClassVar[str] = "write-to-whole-arrays"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"dynamic_update_slice", "scatter"})

    def find(self, op: Op) -> Iterator[PutBack]:
        outer = access(op)
        found = nested(outer) if outer is not None and op.result.uses else None  # (1), (2)
        if found is not None and found.is_in_order:  # (3)
            says = f"{found.inner.op.name} writes to {found.outer.array.label}, not to a window"
            yield PutBack(op, says, found)

    def refuse(self, match: PutBack) -> str | None:
        found = match.nested
        read, inner, outer = found.read, found.inner, found.outer
        if cost_model().is_most(inner.nbytes, read.nbytes):
            return "most of the window is written"
        if not _is_whole(found):
            return "both windows are part of one axis"  # (4)
        if not _have_one_dtype(found):
            return "the dtype of an index is too small, or another"  # (4)
        if not all(dominates(outer.array, use.op) for use in inner.op.result.uses):
            return "the array is made after the window is read"  # (5)
        at = _spot(found)
        if _is_read_after(found, at):
            return "the window is read as it was before"
        if any(comes_late(u, at) and not _is_apart(u, outer) for u in _others(outer)):
            return "the array is read as it was before"
        return None

    def rewrite(self, match: PutBack, rw: Rewriter) -> None:
        found = match.nested
        read, inner, outer, at = found.read, found.inner, found.outer, _spot(found)
        later = [u for u in _others(outer) if is_not_before(u, at) and _is_apart(u, outer)]
        operands = outer.array, inner.value, *inner.indices, *read.indices
        whole = rw.typed(
            partial(written_to_whole, found), outer.op.result.aval, *operands, before=at
        )
        again = rw.clone([read.op, *found.before], {read.array: whole}, at)
        for user in later:
            rw.set_operand(user, 0, whole)
        rw.replace(outer.op.result, whole)
        rw.erase(outer.op)
        rw.replace(inner.op.result, again[inner.array])


def _is_whole(found: Nested) -> bool:  # (4)
    """Whether along each axis only one of the windows is part of the array."""
    inner, place, outer = found.inner, found.place, found.narrowed
    if has_numbers(inner.op):
        if len(place) < len(inner.array.shape):
            return False
        if any(found.outer.window[axis].start is None for axis in outer):
            return False
        return not outer & {place[axis] for axis in indexed_axes(inner.op)}
    sizes = zip(inner.sizes, inner.array.shape, strict=True)
    return not outer & {place[axis] for axis, (size, n) in enumerate(sizes) if size != n}


def _have_one_dtype(found: Nested) -> bool:  # (4)
    """Whether all indices have one dtype, or may be given it, and it holds all positions."""
    dtype, outer = found.inner.indices[0].dtype, found.outer
    if not dtypes.holds(dtype, max(outer.array.shape)):
        return False
    return outer.is_located or all(each.dtype == dtype for each in found.read.indices)


def _spot(found: Nested) -> Op:
    """Where the array can be written: before an op."""
    array, inner = found.outer.array, found.inner.op
    if dominates(array, inner):
        return inner
    assert array.op is not None and array.op.next is not None
    return array.op.next


def _others(outer: Access) -> list[Op]:
    return [user for user in outer.array.users if user is not outer.op]


def _is_read_after(found: Nested, spot: Op) -> bool:
    """Whether the window that is read is needed once it is written."""
    chain = [found.read.op, *found.before]
    users = {user for op in chain for user in op.result.users}
    return any(comes_late(user, spot) for user in users - {*chain, found.inner.op})


def _is_apart(op: Op, outer: Access) -> bool:
    """Whether an op only reads another window of the array, in the same step."""
    read = access(op) if reads_window(op, outer.array) else None
    return read is not None and apart(read.window, outer.window)
