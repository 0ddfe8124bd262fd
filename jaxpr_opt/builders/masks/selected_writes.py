"""Write a selected window, instead of selecting between written arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.masks.masks_at_windows import predicate_at, predicate_of_rows, spread_at
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.analysis.windows.window_primitives import neutral
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import has_numbers, mode_of
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter

Writes = Sequence[tuple[int, Access]]
"""First to last, each with the case of a select that it belongs to."""


def write_selected(select: Op, base: Value, writes: Writes, rw: Rewriter) -> Value:
    """The result of a select between versions of `base`, as writes of selected windows."""
    value = base
    for group in _groups(writes):
        together = _together(value, select, group, rw)
        for case, each in group.items() if together is None else ():
            value = _selected(value, select, case, each, select, rw)
        value = together or value
    return value


def write_each_selected(select: Op, base: Value, writes: Writes, rw: Rewriter) -> list[Value]:
    """Insert, at each write of one case, the array that holds the write if the select takes that
    case, and the current version of `base` if not.  The predicate is known before the first write.
    """
    made: list[Value] = []
    for case, each in writes:
        array = made[-1] if made else base
        made.append(_selected(array, select, case, each, each.op, rw))
    return made


def _selected(array: Value, select: Op, case: int, write: Access, at: Op, rw: Rewriter) -> Value:
    args = array, select, case, write, at, rw
    return _dropped(*args) or _written(*args)


def _groups(writes: Writes) -> list[dict[int, Access]]:
    """Writes that are of one kind, at places that the data say, each of another case: of each case
    in their order. An element is written by the case that is chosen, and by no other.
    """
    groups: list[dict[int, Access]] = []
    later: dict[int, int] = {}
    for case, each in writes:
        places = range(later.get(case, 0), len(groups))
        at = next((n for n in places if _are_alike(each, *groups[n].values())), len(groups))
        if at == len(groups):
            groups.append({})
        groups[at][case], later[case] = each, at + 1
    return groups


def _together(array: Value, select: Op, writes: Mapping[int, Access], rw: Rewriter) -> Value | None:
    """One write of what the case that is chosen writes, where it does: a case that does not write
    does so out of range.
    """
    if len(writes) == 1:
        return None
    (which, *versions), (first, *_) = select.operands, writes.values()
    rows, values = predicate_of_rows(first, which), spread_at(first, which)
    cases, outside = range(len(versions)), max(array.shape)
    drops = mode_of(first.op) == lax.GatherScatterMode.FILL_OR_DROP
    is_dropped = drops and dtypes.holds(first.indices[0].dtype, outside)
    if rows is None or values is None or not (is_dropped or len(writes) == len(cases)):
        return None
    each = [writes.get(case, first) for case in cases]

    def fun(array: Any, of_rows: Any, of_values: Any, *written: Any) -> Any:
        new, places = written[: len(each)], list(written[len(each) :])
        for case in set(cases) - writes.keys():
            places[case] = lax.full_like(places[case], outside)
        value = lax.select_n(values[1](of_values), *new)
        return first.again(array, value, lax.select_n(rows[1](of_rows), *places))

    written = *(w.value for w in each), *(w.indices[0] for w in each)
    operands = array, rows[0], values[0], *written
    return rw.typed(fun, first.op.result.aval, *operands, before=select)


def _are_alike(*writes: Access) -> bool:
    """Whether writes are by one kind of scatter, none to where it is known."""
    first, *_ = writes
    return has_numbers(first.op) and not any(
        each.is_located
        or each.op.primitive is not first.op.primitive
        or each.op.params != first.op.params
        or each.value.aval != first.value.aval
        or each.indices[0].aval != first.indices[0].aval
        for each in writes
    )


def _written(array: Value, select: Op, case: int, write: Access, at: Op, rw: Rewriter) -> Value:
    """The write into `array`; where the select does not take `case`, of what is there."""
    predicate, at_window = predicate_at(write, select.operands[0])
    chosen = partial(_chosen, case, len(select.operands) - 1)
    nothing = neutral(write.op)

    def fun(array: Any, predicate: Any, value: Any, *indices: Any) -> Any:
        # Condition 2 of sink-select-into-update.
        kept = write.read(array, *indices) if nothing is None else lax.full_like(value, nothing)
        new = chosen(at_window(predicate, *indices), value, kept)
        return write.again(array, new, *indices)

    operands = (array, predicate, write.value, *write.indices)
    return rw.typed(fun, write.op.result.aval, *operands, before=at)


def _dropped(
    array: Value, select: Op, case: int, write: Access, at: Op, rw: Rewriter
) -> Value | None:
    """The write into `array`; where the select does not take `case`, out of range."""
    # Condition 2 of sink-select-into-update.
    if mode_of(write.op) != lax.GatherScatterMode.FILL_OR_DROP:
        return None
    if write.is_located or neutral(write.op) is not None:
        return None  # a slice is read; or nothing is, and under `vmap` one window stays one
    rows = predicate_of_rows(write, select.operands[0])
    outside = max(array.shape)
    # Conditions 2, 3 of sink-select-into-update.
    if rows is None or not dtypes.holds(write.indices[0].dtype, outside):
        return None
    predicate, of_rows = rows
    chosen = partial(_chosen, case, len(select.operands) - 1)

    def fun(array: Any, predicate: Any, value: Any, index: Any) -> Any:
        nowhere = lax.full_like(index, outside)
        place = chosen(of_rows(predicate), index, nowhere)
        return write.again(array, value, place)

    operands = (array, predicate, write.value, *write.indices)
    return rw.typed(fun, write.op.result.aval, *operands, before=at)


def _chosen(case: int, cases: int, which: jax.Array, then: Any, otherwise: Any) -> jax.Array:
    """`then` where one of some cases is chosen; the first and the last are also by numbers that are
    out of range.
    """
    if which.dtype == bool:
        return lax.select_n(which, *((then, otherwise) if case == 0 else (otherwise, then)))
    number = np.asarray(case, which.dtype)
    is_chosen = lax.le if case == 0 else lax.ge if case == cases - 1 else lax.eq
    return lax.select_n(is_chosen(which, lax.full_like(which, number)), otherwise, then)
