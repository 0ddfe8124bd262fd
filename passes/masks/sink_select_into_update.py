"""Select the window that is written, not the array it is written into.

Before::

    b1 = scatter b i u
    m = broadcast_in_dim[dims=(0,)] p
    b2 = select_n m b b1

After, where `i` is known::

    r = gather b i
    v = select_n p r u
    b2 = scatter b i v

and where it is computed by the step, and rows out of range are dropped::

    j = select_n p 8 i                      # b has 8 elements
    b2 = scatter b j u

`vmap` of a ``cond`` or a ``while`` selects between whole carries, and so does ``jnp.where(p,
ys.at[i].set(y), ys)``: a step that writes one element then touches all. Each case of the select,
two or those of a ``switch``, may be a chain of writes of windows, as long as all chains start from
the same array, or a sum of zeros with windows added, which is zeros with all of them added::

    select_n p (write (write b i u) j v) (write b k w)
    select_n p z (add_any (scatter-add z i u) (scatter-add z j v))

Sound when

1. all cases are one array outside the written windows, in sums up to the sign of zero; selects by
   the same predicate, or by whether it says a certain case, are seen through, because only one of
   their cases counts;
2. where the predicate discards a write, another takes its place, or the write stores the old value,
   adds zero, multiplies by one, takes the minimum with infinity, or is dropped; `Access` covers ops
   of one window per row only, so that no element is written twice, and reads mirror writes, so that
   rows out of range are clamped or dropped alike;
3. the predicate at the window is known: the elements it is a broadcast of, if the window is whole
   along the axes on which they vary, or else a read like that of the array;
4. no other op reads the intermediate arrays, which are no longer made. Or the predicate can be
   known before them, all writes are of one case, and once nobody differentiates any more, other
   selects discard what comes of them where the select takes the other case
   (`jaxpr_opt.analysis.steps.discarded_rows`). Then the new arrays are read: a step of a vmapped
   ``while`` attends to the cache that it has written to. Where a loop stores such a version for
   its gradient, it is written once more, into the new array: `undo-carried-writes` does not store
   it then.

Writes of one kind by several cases, such as the halves of swaps, become one: of what the case that
is chosen writes.

Cost: at most one more read of a window, and no longer an array for each case: less, unless the
windows are most of these. A batched `switch` of which two to six cases write a row, or half of the
rows, of a buffer of two to eight: 0.2 to 0.5 of the time, gradients 0.3 to 0.9 (CPU, jax 0.10).
Source: https://github.com/jax-ml/jax/issues/8192, https://github.com/jax-ml/jax/issues/13522
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxpr_opt.analysis.masks.masks_at_windows import predicate_at
from jaxpr_opt.analysis.masks.selected_versions import (
    is_stored_for_loop_back,
    no_gain,
    of_array,
    versions,
)
from jaxpr_opt.analysis.steps.discarded_rows import are_discarded, rows_where
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.analysis.windows.window_primitives import COMBINING, WRITES
from jaxpr_opt.builders.masks.selected_writes import write_each_selected, write_selected
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.insight.journal import Waste
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.nesting import dominates, phase_of
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import can_move


@dataclass(frozen=True, slots=True, eq=False)
class Sinkable(Match):
    """A select between versions of `base`."""

    base: Value
    writes: tuple[tuple[int, Access], ...]
    """First to last, each with the case it belongs to."""
    between: tuple[Op, ...]
    """The ops that make the versions, last to first."""

    @property
    def path(self) -> tuple[Op, ...]:
        """The ops whose results are no longer made."""
        return (self.op, *self.between)


@dataclass(frozen=True)
class SinkSelectIntoUpdate(Pass[Sinkable]):
    """A select between an array and the array with an element written becomes a select between
    two elements.
    """

    name: ClassVar[str] = "sink-select-into-update"
    whole_arrays: ClassVar[bool] = True

    primitives: ClassVar[frozenset[str]] = frozenset({"select_n"})
    needs: ClassVar[frozenset[str]] = WRITES | COMBINING.keys()

    def find(self, op: Op) -> Iterator[Sinkable]:
        which, *cases = op.operands
        if len(cases) < 2:
            return
        found_in = [list(versions(v, which, case, op)) for case, v in enumerate(cases)]
        for first in found_in[0]:
            found = [of_array(first.array, others) for others in found_in]
            writes = tuple(write for each in found if each is not None for write in each.writes)
            if None not in found and writes:  # (1)
                says = "the written window is selected, not the whole array"
                between = tuple(op for each in found if each is not None for op in each.between)
                waste: Waste | None = None if no_gain(writes, first.array) else "select"
                args = op, says, first.array, writes, between
                yield Sinkable(*args, at=writes[-1][1].op, about=op.result, waste=waste)
                return

    def refuse(self, match: Sinkable) -> str | None:
        others = _read_elsewhere(match)
        for array in others:
            if not (_is_discarded(array, match) or _is_stored(array, match)):  # (4)
                return f"what {array.label} makes is read elsewhere, too"
        if others and not all(_may_be_early(op, match) for op in _late(match)):  # (4)
            return "the predicate is known only after the array has been read"
        if not isinstance(match.base.dtype, np.dtype):
            return f"a window of {match.base.dtype} is read differently than it is written"  # (2)
        return no_gain(match.writes, match.base)

    def rewrite(self, match: Sinkable, rw: Rewriter) -> None:
        anchor, others = match.op, _read_elsewhere(match)
        if others:
            stored = [array for array in others if not _is_discarded(array, match)]
            for op in _late(match):
                rw.move(op, match.writes[0][1].op)
            new = write_each_selected(anchor, match.base, match.writes, rw)
            for count, ((_, write), array) in enumerate(zip(match.writes, new, strict=True)):
                old, before = write.op.result, [each for _, each in match.writes[: count + 1]]
                seen = _written_again(before, array, rw) if old in stored else array
                rw.replace(old, seen, lambda use: use.op not in match.path)
            rw.replace(anchor.result, new[-1])
        else:
            rw.replace(anchor.result, write_selected(anchor, match.base, match.writes, rw))
        for op in (anchor, *match.between):
            if not op.result.uses:
                rw.erase(op)


def _read_elsewhere(match: Sinkable) -> list[Value]:
    """The versions that other ops read."""
    made = dict.fromkeys(op.result for op in match.between)
    return [v for v in made if not set(match.path).issuperset(v.users)]


def _is_discarded(array: Value, match: Sinkable) -> bool:
    """Whether what else is made of a version counts only where the select takes its case (4)."""
    which, writes = match.op.operands[0], match.writes
    is_of_one = len({case for case, _ in writes}) == 1
    if which.dtype != bool or not is_of_one or phase_of(match.op) != "final":  # (4)
        return False
    if array not in [write.op.result for _, write in writes]:
        return False
    return are_discarded(array, rows_where(which, writes[0][0] == 1), set(match.path))


def _is_stored(array: Value, match: Sinkable) -> bool:
    """Whether a loop stores a version, made by writes of one case, for a loop back (4)."""
    cases, writes = zip(*match.writes, strict=True)
    are_writes = len(set(cases)) == 1 and all(write.kind == "write" for write in writes)
    is_made_so = are_writes and array in [write.op.result for write in writes]
    return is_made_so and is_stored_for_loop_back(array)


def _written_again(writes: list[Access], version: Value, rw: Rewriter) -> Value:
    """The version that some writes make, made of the new array."""
    for write in writes:
        args = version, write.value, *write.indices
        version = rw.typed(write.again, write.op.result.aval, *args, before=writes[-1].op)
    return version


def _late(match: Sinkable) -> list[Op]:
    """The ops that make the predicate only after the first write."""
    which, first = match.op.operands[0], match.writes[0][1].op
    predicates = [predicate_at(write, which)[0] for _, write in match.writes]
    return backward_slice(predicates, lambda value: dominates(value, first))


def _may_be_early(op: Op, match: Sinkable) -> bool:
    """Whether an op may move before all versions are made."""
    return can_move(op) and op not in match.path
