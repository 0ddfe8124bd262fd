"""Whether the steps of a loop that are taken are its first ones, though their predicate is not
compared with one bound: ``any(step < lengths)`` of a batch, rows of ``iota[:, None] < lengths``.

A comparison of integers that are affine in the number of the row stays false once it is false, if
their difference grows the right way. Logic of such truth values, all of which stay, stays, too.
"""

from __future__ import annotations

from functools import partial

from jaxpr_opt.analysis.steps.lasting import keeps_truth
from jaxpr_opt.analysis.steps.masks import Prefix, first_rows
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.analysis.values.induction import affine
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import axes_of, broadcast_dimensions_of
from jaxpr_opt.ir.dataflow import source_through
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.traits import LAYING

_ELEMENTWISE = frozenset({"and", "copy", "or", "stop_gradient"})

_MOVES = LAYING | {"transpose"}

_BELOW = {("lt", True): 0, ("ge", False): 0, ("gt", True): 1, ("le", False): 1}
"""Which operand of a comparison is less than the other one, if it comes out so."""


def rows_below(skip: Skip) -> Prefix | None:
    """The mask of a scan that takes exactly its first rows, as `first_rows`, or, of a batch, rows
    up to the greatest of its bounds, which it compares with one number a step: ``step < lengths``.
    """
    op, is_taken = skip.predicate.op, skip.taken_when
    if (first := first_rows(skip)) is not None:
        return first
    while op is not None and op.name == ("reduce_or" if is_taken else "reduce_and"):
        op = op.operands[0].op
    place = _BELOW.get((op.name, is_taken)) if op is not None else None
    # Condition 2 of exit-loop-early.
    if op is None or place is None or not dtypes.is_integer(op.operands[0].dtype):
        return None
    body = skip.scan.body
    lays = lambda op: op.name in LAYING and body.defines(op.result)  # noqa: E731
    row, bound = affine(op.operands[place]), source_through(op.operands[1 - place], lays)
    # Condition 2 of exit-loop-early.
    if row is None or any(row.strides) or row.offset < 0 or not op.result.size:
        return None
    # Condition 2 of exit-loop-early.
    if body.defines(bound):
        return None
    a = row.steps.get(skip.scan, 0)
    # Condition 2 of exit-loop-early.
    return Prefix(bound, (a,), row.offset) if a > 0 and len(row.steps) == 1 else None


def are_first(skip: Skip) -> bool:
    """Whether no row before one that is taken is skipped: once an element says that a step is not
    taken, it says so of all rows behind it.
    """
    # Condition 2 of exit-loop-early.
    return _stays(skip.predicate, not skip.taken_when, skip.scan)


@remembered
def _stays(value: Value, truth: bool, scan: Scan | None) -> bool:
    """Whether an element that has this truth value in a row has it in all rows behind it: in the
    steps of a scan, or, of an array that it streams, along the first axis.
    """
    if _is_same(value, scan):
        return True
    op, stream = value.op, scan.stream_of(value) if scan is not None else None
    if stream is not None:
        return _stays(stream.operand, truth, None)
    if op is None or value.dtype != bool:
        return False
    if op.name == "not":
        return _stays(op.operands[0], not truth, scan)
    if op.name in _ELEMENTWISE or _moves_in_rows(op, scan) or _reduces_rows(op, scan):
        return all(_stays(v, truth, scan) for v in op.operands)
    return keeps_truth(op, truth, partial(_slope, scan=scan))


def _is_same(value: Value, scan: Scan | None) -> bool:
    """Whether a value is the same in all rows."""
    if scan is not None:
        return not scan.body.defines(value)
    if value.shape[:1] in ((), (1,)):
        return True
    op = value.op
    if op is None or op.name != "broadcast_in_dim":
        return False
    return 0 not in broadcast_dimensions_of(op) or op.operands[0].shape[0] == 1


def _reduces_rows(op: Op, scan: Scan | None) -> bool:
    """Whether an op combines truth values of each row."""
    is_reduction = op.name in ("reduce_and", "reduce_or")
    return is_reduction and (scan is not None or 0 not in axes_of(op))


def _moves_in_rows(op: Op, scan: Scan | None) -> bool:
    """Whether an op moves the elements of each row."""
    if scan is not None:
        return op.name in _MOVES
    is_spread = op.name == "broadcast_in_dim" and 0 in broadcast_dimensions_of(op)
    return is_spread and op.operands[0].shape[:1] == op.result.shape[:1]


@remembered
def _slope(value: Value, scan: Scan | None) -> int | None:
    """By how much a number grows from row to row; one that might wrap around is unknown."""
    if _is_same(value, scan):
        return 0
    found, op = affine(value), value.op
    if found is not None:
        return found.steps.get(scan, 0) if scan is not None else sum(found.strides[:1])
    return _slope(op.operands[0], scan) if op is not None and _moves_in_rows(op, scan) else None
