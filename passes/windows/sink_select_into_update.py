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
4. no other op reads the intermediate arrays, which are no longer made.

Cost: at most one more read of a window, and no longer the array: less, unless the windows are most
of it.
Source: https://github.com/jax-ml/jax/issues/8192, https://github.com/jax-ml/jax/issues/13522
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from jaxpr_opt.analysis.values.selected_cases import case_within
from jaxpr_opt.analysis.windows.access import Access, access, combined
from jaxpr_opt.analysis.windows.window_primitives import COMBINING, WRITES, neutral
from jaxpr_opt.builders.selected_writes import write_selected
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.insight.journal import Waste
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Sinkable(Match):
    """A select between versions of `base`."""

    base: Value
    writes: tuple[tuple[int, Access], ...]
    """First to last, each with the case it belongs to."""
    between: tuple[Op, ...]
    """The ops that make the versions, last to first."""


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
        versions = [list(_versions(v, which, case, op)) for case, v in enumerate(cases)]
        for first in versions[0]:
            found = [_of_array(first.array, others) for others in versions]
            writes = tuple(write for each in found if each is not None for write in each.writes)
            if None not in found and writes:  # (1)
                says = "the written window is selected, not the whole array"
                between = tuple(op for each in found if each is not None for op in each.between)
                args = op, says, first.array, writes, between
                waste: Waste | None = None if _is_most(writes, first.array) else "select"
                yield Sinkable(*args, at=writes[-1][1].op, about=op.result, waste=waste)
                return

    def refuse(self, match: Sinkable) -> str | None:
        path = {match.op, *match.between}
        for op in match.between:
            if not path.issuperset(op.result.users):
                return f"what {op.name} makes is read elsewhere, too"  # (4)
        if not isinstance(match.base.dtype, np.dtype):
            return f"a window of {match.base.dtype} is read differently than it is written"  # (2)
        if _is_most(match.writes, match.base):
            return "the windows are most of the array"
        return None

    def rewrite(self, match: Sinkable, rw: Rewriter) -> None:
        anchor = match.op
        rw.replace(anchor.result, write_selected(anchor, match.base, match.writes, rw))
        for op in (anchor, *match.between):
            if not op.result.uses:
                rw.erase(op)


def _is_most(writes: tuple[tuple[int, Access], ...], array: Value) -> bool:
    return cost_model().is_most(sum(each.nbytes for _, each in writes), array.nbytes)


@dataclass(frozen=True, slots=True)
class _Version:
    """What an array is written into to give the case of a select."""

    array: Value
    writes: tuple[tuple[int, Access], ...] = ()
    between: tuple[Op, ...] = ()


def _versions(value: Value, which: Value, case: int, anchor: Op) -> Iterator[_Version]:
    """The case itself, and what it is one write of, two, ..."""
    writes: tuple[tuple[int, Access], ...] = ()
    between: tuple[Op, ...] = ()
    count = len(anchor.operands) - 1
    seen, through = _seen_through(value, which, case, count)
    yield _Version(seen)
    for _ in range(limits.WRITES_IN_A_ROW):
        op = seen.op
        write = _write(op) if op is not None and op.region is anchor.region else None
        if write is None or write.kind == "read":  # (1)
            return
        writes, between = ((case, write), *writes), (*between, *through, write.op)
        seen, through = _seen_through(write.array, which, case, count)
        yield _Version(seen, writes, between)


def _of_array(array: Value, versions: Iterable[_Version]) -> _Version | None:
    """The first of some versions that is one of an array."""
    return next((each for each in versions if each.array is array), None)


def _write(op: Op) -> Access | None:
    """The window that an op writes, adds to, or combines with what may change nothing."""
    return access(op) or (combined(op) if neutral(op) is not None else None)


def _seen_through(
    value: Value, which: Value, case: int, count: int
) -> tuple[Value, tuple[Op, ...]]:
    """What one of so many cases is where it counts: selects pass on what they take there."""
    selects: tuple[Op, ...] = ()
    while (op := value.op) is not None and op.name == "select_n":  # (1)
        taken = case_within(op, which, case, count)
        if taken is None:
            break
        selects, value = (*selects, op), op.operands[1 + taken]
    return value, selects
