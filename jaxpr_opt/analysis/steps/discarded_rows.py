"""Whether selects discard what some rows of an array lead to.

`vmap` of a `while` computes every row of a batch until the last row has stopped, and selects:
a row that has stopped keeps what it carried. What such a row of an array is makes no difference, if
all that is computed from it is selected away::

    c1 = scatter c i u
    a = dot_general c1 h            # row b of `a` depends on row b of `c1` only
    h1 = select_n m h (tanh a)      # and counts where `m` says so
    c2 = select_n m c c1

Row b of `c1` may be anything where ``m[b]`` is false. A predicate without axes is about the whole
array.

This holds only once nobody differentiates any more: a cotangent of zero times what such a row leads
to is NaN if that is not finite, and the row as it was may have led to something finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import heappop, heappush

from jax.lax import GatherScatterMode

from jaxpr_opt.analysis.rows.row_axes import row_axis
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.bridge.parameters import mode_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Cond, Op, Region, Value
from jaxpr_opt.ir.traits import LAYING, is_speculable

Axes = tuple[int | None, ...]
"""For each axis of a predicate, the axis of an array whose rows it is about; None for an axis of
one element, which is about all rows.
"""

DROP = GatherScatterMode.FILL_OR_DROP

_LAYING = LAYING | {"transpose"}


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Rows that a predicate chooses: those for which it is `when`."""

    predicate: Value
    when: bool
    axes: Axes


def chosen_rows(
    which: Value, is_true: bool, left: int = limits.WAY_TO_AN_INDEX
) -> Iterator[ChosenRows]:
    """Predicates that hold for every row for which an element of `which` is `is_true`."""
    yield ChosenRows(which, is_true, _own_axes(which))
    op = which.op
    if op is None or which.dtype != bool or not left:
        return
    if op.name == "not":
        yield from chosen_rows(op.operands[0], not is_true, left - 1)
    elif op.name == ("and" if is_true else "or"):
        for each in dict.fromkeys(op.operands):
            yield from chosen_rows(each, is_true, left - 1)
    elif op.name in _LAYING:
        for rows in chosen_rows(op.operands[0], is_true, left - 1):
            axes = _moved(op, 0, rows.axes)
            if axes is not None:
                yield ChosenRows(rows.predicate, rows.when, axes)


@remembered
def rows_where(which: Value, is_true: bool) -> ChosenRows:
    """The rows of an array like `which` for which its elements are `is_true`, by the smallest
    predicate that says so.
    """
    op = which.op
    if op is not None and op.name == "not" and which.dtype == bool:
        return rows_where(op.operands[0], not is_true)
    if op is not None and op.name in _LAYING:
        rows = rows_where(op.operands[0], is_true)
        axes = _moved(op, 0, rows.axes)
        if axes is not None:
            return ChosenRows(rows.predicate, rows.when, axes)
    return ChosenRows(which, is_true, _own_axes(which))


def _own_axes(predicate: Value) -> Axes:
    return tuple(axis if n != 1 else None for axis, n in enumerate(predicate.shape))


def _moved(op: Op, position: int, axes: Axes) -> Axes | None:
    """Where the rows of an operand are in the results; None if they do not stay apart."""
    found = tuple(axis if axis is None else row_axis(op, position, axis) for axis in axes)
    is_lost = any(to is None and axis is not None for axis, to in zip(axes, found, strict=True))
    return None if is_lost else found


def are_discarded(array: Value, rows: ChosenRows, ignored: Set[Op]) -> bool:
    """Whether nothing depends on the rows of an array that are not chosen, but for what the
    `ignored` ops read.
    """
    region, walk = array.region, _Walk(rows, ignored)
    return region is not None and walk.follow(region, {array: rows.axes}) and walk.is_unseen(region)


class _Walk:
    """Follows rows that change through the ops that read them."""

    def __init__(self, rows: ChosenRows, ignored: Set[Op]) -> None:
        self._rows = rows
        self._ignored = ignored
        self._axes: dict[Value, Axes] = {}
        """The values that change, and where their rows are."""

    def follow(self, region: Region, changed: Mapping[Value, Axes]) -> bool:
        """Find what changes in a region; False if something changes in another way than by rows."""
        pending: list[tuple[int, Op]] = []
        seen: set[Op] = set()

        def note(value: Value, axes: Axes) -> bool:
            # Condition 4 of sink-select-into-update.
            if self._axes.setdefault(value, axes) != axes:
                return False
            for user in value.users:
                op = region.ancestor(user)
                if op is not None and op not in seen and user not in self._ignored:
                    seen.add(op)
                    heappush(pending, (region.order(op), op))
            return True

        if not all(note(value, axes) for value, axes in changed.items()):
            return False
        while pending:
            _, op = heappop(pending)
            found = [] if op.is_terminator else self._results(op)
            if found is None:
                return False
            for value, axes in zip(op.results, found, strict=False):
                if axes is not None and not note(value, axes):
                    return False
        return True

    def is_unseen(self, region: Region) -> bool:
        """Whether what a region yields is as it was."""
        # Condition 4 of sink-select-into-update.
        return self._axes.keys().isdisjoint(region.outputs)

    def _results(self, op: Op) -> Sequence[Axes | None] | None:
        """The axes of the rows that change in each result; None if that is not known."""
        if isinstance(op, Cond):
            return self._cond(op)
        # Condition 4 of sink-select-into-update.
        if op.regions or not is_speculable(op):
            return None
        changed = [i for i, v in enumerate(op.operands) if v in self._axes]
        if (op.name == "select_n" and self._discards(op, changed)) or self._drops(op, changed):
            return [None]
        found = {_moved(op, i, self._axes[op.operands[i]]) for i in changed}
        return [found.pop()] * len(op.results) if len(found) == 1 and None not in found else None

    def _cond(self, op: Cond) -> Sequence[Axes | None] | None:
        # Condition 4 of sink-select-into-update.
        if op.selector in self._axes:
            return None
        for branch in op.branches:
            read = {v: self._axes[v] for v in inputs(op) if v in self._axes}
            if not self.follow(branch, read):
                return None
        found: list[Axes | None] = []
        for outcome in op.outcomes:
            axes = {self._axes[v] for v in outcome.values if v in self._axes}
            # Condition 4 of sink-select-into-update.
            if len(axes) > 1:
                return None
            found.append(axes.pop() if axes else None)
        return found

    def _discards(self, select: Op, changed: Sequence[int]) -> bool:
        """Whether a select takes no row that changes."""
        return len(select.operands) == 3 and all(
            i > 0 and self._are_chosen(select.operands[0], i == 2, self._axes[select.operands[i]])
            for i in changed
        )

    def _drops(self, scatter: Op, changed: Sequence[int]) -> bool:
        """Whether all rows that change are updates that are written out of range, where a select of
        places says so, and dropped.
        """
        # Condition 4 of sink-select-into-update.
        if changed != [2] or mode_of(scatter) != DROP:
            return False
        array, places, update = scatter.operands
        select, axes = places.op, _moved(scatter, 2, self._axes[update])
        if select is None or select.name != "select_n" or len(select.operands) != 3:
            return False
        outside = [uniform(place) for place in select.operands[1:]]
        return any(
            each.predicate is self._rows.predicate
            and each.when is self._rows.when
            and _moved(scatter, 1, each.axes) == axes
            for case, place in enumerate(outside)
            if place is not None and place >= max(array.shape)
            for each in chosen_rows(select.operands[0], case == 0)
        )

    def _are_chosen(self, which: Value, is_true: bool, axes: Axes) -> bool:
        """Whether all rows for which an element of `which` is `is_true` are rows that count."""
        wanted = ChosenRows(self._rows.predicate, self._rows.when, axes)
        return wanted in chosen_rows(which, is_true)
