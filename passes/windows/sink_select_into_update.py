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
the same array::

    select_n p (write (write b i u) j v) (write b k w)

Sound when

1. all cases are one array outside the written windows; selects by the same predicate, or by whether
   it says a certain case, are seen through, because only one of their cases counts;
2. where the predicate discards a write, another takes its place, or the write stores the old value,
   adds zero, multiplies by one, takes the minimum with infinity, or is dropped; `Access` covers ops
   of one window per row only, so that no element is written twice, and reads mirror writes, so that
   rows out of range are clamped or dropped alike;
3. the predicate at the window is known: the elements it is a broadcast of, if the window is whole
   along the axes on which they vary, or else a read like that of the array;
4. no other op reads the intermediate arrays, which are no longer made; or an op reads the array
   with the writes of one case only, and once nobody differentiates any more, other selects discard
   what comes of it where the select takes another case (`jaxpr_opt.analysis.steps.discarded_rows`).
   It then reads the new array: a step of a vmapped ``while`` attends to the cache that it has
   written to. Where a loop stores that version for its gradient, it is written once more, into the
   new array: then `undo-carried-writes` need not store it.

Cost: at most one more read of a window, and no longer the array: less, unless the windows are most
of it.
Source: https://github.com/jax-ml/jax/issues/8192, https://github.com/jax-ml/jax/issues/13522
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxpr_opt.analysis.steps.discarded_rows import are_discarded, rows_where
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.analysis.windows.predicates import predicate_at
from jaxpr_opt.analysis.windows.selected_versions import (
    is_stored_for_loop_back,
    of_array,
    versions,
)
from jaxpr_opt.analysis.windows.window_primitives import COMBINING, WRITES
from jaxpr_opt.builders.selected_writes import write_selected
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.insight.journal import Waste
from jaxpr_opt.ir.graph import Op, Value, backward_slice, dominates, phase_of
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
class SinkSelectIntoUpdate(Pass):
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
                args = op, says, first.array, writes, between
                waste: Waste | None = None if _is_most(writes, first.array) else "select"
                yield Sinkable(*args, at=writes[-1][1].op, about=op.result, waste=waste)
                return

    def refuse(self, match: Sinkable) -> str | None:
        for array in _read_elsewhere(match):
            if not all(map(can_move, _late(match))) or not (
                _is_discarded(array, match) or _is_stored(array, match)
            ):
                return f"what {array.label} makes is read elsewhere, too"  # (4)
        if not isinstance(match.base.dtype, np.dtype):
            return f"a window of {match.base.dtype} is read differently than it is written"  # (2)
        if _is_most(match.writes, match.base):
            return "the windows are most of the array"
        return None

    def rewrite(self, match: Sinkable, rw: Rewriter) -> None:
        anchor, others = match.op, _read_elsewhere(match)
        first = _first_reader(match)
        for op in _late(match):
            rw.move(op, first)
        new = write_selected(anchor, match.base, match.writes, rw, before=first)
        rw.replace(anchor.result, new)
        for array in others:
            seen = new if _is_discarded(array, match) else _written_again(new, match, first, rw)
            rw.replace(array, seen, lambda use: use.op not in match.path)
        for op in (anchor, *match.between):
            if not op.result.uses:
                rw.erase(op)


def _read_elsewhere(match: Sinkable) -> list[Value]:
    """The versions that other ops read."""
    made = dict.fromkeys(op.result for op in match.between)
    return [v for v in made if not set(match.path).issuperset(v.users)]


def _first_reader(match: Sinkable) -> Op:
    """The first op of the step that reads a version, or the select."""
    region = match.op.region
    assert region is not None
    users = (region.ancestor(user) for v in _read_elsewhere(match) for user in v.users)
    readers = [op for op in users if op is not None and op not in match.between]
    return min([match.op, *readers], key=region.order)


def _is_discarded(array: Value, match: Sinkable) -> bool:
    """Whether what else is made of a case counts only where the select takes it (4)."""
    which, *cases = match.op.operands
    taken = {case for case, _ in match.writes}
    if which.dtype != bool or array not in cases or taken != {cases.index(array)}:
        return False
    if phase_of(match.op) != "final":  # (4)
        return False
    return are_discarded(array, rows_where(which, taken == {1}), set(match.path))


def _is_stored(array: Value, match: Sinkable) -> bool:
    """Whether a loop stores a version, one write of the array, for a loop back (4)."""
    (_, write), *others = match.writes
    is_made_so = not others and write.kind == "write" and write.op.result is array
    return is_made_so and is_stored_for_loop_back(array)


def _written_again(new: Value, match: Sinkable, before: Op, rw: Rewriter) -> Value:
    """The version that is read elsewhere, made of the new array."""
    ((_, write),) = match.writes
    return rw.typed(
        write.again, write.op.result.aval, new, write.value, *write.indices, before=before
    )


def _late(match: Sinkable) -> list[Op]:
    """The ops that make the predicate only after the first op that reads a version."""
    first, which = _first_reader(match), match.op.operands[0]
    predicates = [predicate_at(write, which)[0] for _, write in match.writes]
    return backward_slice(predicates, lambda value: dominates(value, first))


def _is_most(writes: tuple[tuple[int, Access], ...], array: Value) -> bool:
    return cost_model().is_most(sum(each.nbytes for _, each in writes), array.nbytes)
