"""Ops that run for one case of some selects only."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from jaxpr_opt.analysis.values.selected_cases import spread
from jaxpr_opt.analysis.values.step_numbers import numbers_at
from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.analysis.windows.window_primitives import UPDATING
from jaxpr_opt.ir.dataflow import inputs, source_through
from jaxpr_opt.ir.graph import Cond, Op, Region, Scan, Value, While
from jaxpr_opt.ir.nesting import is_in_a_loop, with_parents
from jaxpr_opt.ir.traits import can_move, is_arithmetic

_SPREADING = frozenset({"broadcast_in_dim", "convert_element_type", "reshape"})
"""What makes a mask of truth values."""


def predicate_of(op: Op) -> Value | None:
    """The truth value that an op of a loop selects by, or one for each row of a batch."""
    if op.name != "select_n" or len(op.operands) != 3:
        return None
    rows, axes = spread(op.operands[0])
    is_batch = axes == tuple(range(len(axes))) and 0 < len(axes) < len(op.result.shape)
    if rows.op is not None and rows.op.name == "convert_element_type":
        rows = rows.op.operands[0]
    is_one = not rows.shape and is_in_a_loop(op)
    return rows if (is_batch or is_one) and rows.dtype == bool else None


def choices(predicate: Value, region: Region) -> list[Op]:
    """The selects of a region by these truth values, in order; the masks may be made around it."""
    found: dict[Op, None] = {}
    pending = [predicate]
    while pending:
        for user in pending.pop().users:
            if user.name in _SPREADING:
                pending.extend(user.results)
            elif user.region is region and predicate_of(user) is predicate:
                found[user] = None
    return sorted(found, key=region.order)


def share_of_steps(predicate: Value, op: Op) -> float | None:
    """Of the steps of a loop, the part in which a truth value is true; None if it is not known."""
    scan = op.parent
    found = numbers_at(predicate, scan) if isinstance(scan, Scan) else None
    return None if found is None else float(found.mean())


def is_asked(predicate: Value, op: Op) -> bool:
    """Whether an op is in a branch that runs only where some row has a predicate."""
    for around in with_parents(op.parent):
        asked = around.operands[0].op if isinstance(around, Cond) else None
        if asked is not None and asked.name == "reduce_or":
            (rows,) = asked.operands
            if rows is predicate or (rows.op is not None and predicate in rows.op.operands):
                return True
    return False


def only_for(selects: Sequence[Op], case: int, region: Region) -> tuple[Op, ...]:
    """The ops of a region, in order, whose results are read only for one case of these selects.

    Not what reads a window of a carried array: in a branch it would keep XLA from writing in place.
    """
    found: dict[Op, None] = {}
    pending: dict[int, Op] = {}
    latest: list[int] = []
    read: Sequence[Value] = [each.operands[1 + case] for each in selects]
    while True:
        for value in read:  # what reads an op comes after it, and is known when its turn comes
            op = value.op
            if op is not None and op.region is region and region.order(op) not in pending:
                pending[region.order(op)] = op
                heappush(latest, -region.order(op))
        if not latest:
            return tuple(sorted(found, key=region.order))
        op = pending[-heappop(latest)]
        read = ()
        if not can_move(op) or reads_carried(op, region):
            continue
        if all(_is_for(v, selects, case, found, region) for v in op.results):
            found[op] = None
            read = inputs(op)


def reads_carried(op: Op, region: Region) -> bool:
    """Whether an op reads a window of an array that a loop carries and changes, as it was before
    the step, or as the step has written to it.
    """
    found, loop = access(op), region.owner
    if found is None or found.kind != "read" or not isinstance(loop, Scan | While):
        return False
    array = source_through(found.array, lambda maker: maker.name in UPDATING)
    return any(each.param is array is not each.next for each in loop.carries)


def made_where_read(ops: Sequence[Op], region: Region | None) -> list[Op]:
    """The basic arithmetic that leads to arrays that some ops of a region read, in order: XLA makes
    these where they are read, but keeps them for a branch.
    """
    assert region is not None
    own = {result for op in ops for result in op.results}
    found: dict[Op, None] = {}
    pending = [value for op in ops for value in inputs(op)]
    while pending:
        value = pending.pop()
        op = value.op
        if op is None or op.region is not region or value in own or op in found:
            continue
        if value.shape and is_arithmetic(op) and can_move(op):
            found[op] = None
            pending += inputs(op)
    return sorted(found, key=region.order)


def _is_for(
    value: Value, selects: Sequence[Op], case: int, found: dict[Op, None], region: Region
) -> bool:
    """Whether a value is read by ops that are for one case only, or as that case."""
    return all(
        (use.op in selects and use.position == 1 + case) or region.ancestor(use.op) in found
        for use in value.uses
    )


def is_read_before(select: Op, last: Op) -> bool:
    """Whether anything reads what is selected before the last select."""
    region = last.region
    assert region is not None
    around = [region.ancestor(user) for user in select.result.users]
    return any(each is not None and region.order(each) < region.order(last) for each in around)
