"""Sums of a loop that are mapped once after it, in place of sums of linear maps.

``f(v1) + f(v2) = f(v1 + v2)`` where f is the same in each step. Of what is linear in something that
changes from step to step, a minimum cut chooses what to add up: it prices the sums of a step, and
the ops that a step runs as they are not behind the cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxpr_opt.analysis.residuals.networks import cheapest_leaves, price
from jaxpr_opt.analysis.sparse.scatter_chains import added
from jaxpr_opt.analysis.values.accumulators import Accumulator
from jaxpr_opt.analysis.values.linearity import linear_operands
from jaxpr_opt.bridge import compat_types, dtypes
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.traits import can_move


@dataclass(frozen=True, slots=True, eq=False)
class MappedSum:
    """An accumulator whose terms are linear in other values of a step."""

    accumulator: Accumulator
    leaves: tuple[Value, ...]
    """What a step would add up."""
    ops: tuple[Op, ...]
    """What computes the terms from them, in order."""
    saved: float
    """Seconds that a step saves."""

    @property
    def nbytes(self) -> int:
        """Bytes of what would be added up."""
        return sum(v.nbytes for v in self.leaves)


def mapped_sum(scan: Scan, accumulator: Accumulator) -> MappedSum | None:
    """The values to add up instead of the terms, where that is cheaper; None if there are none."""
    is_fixed = _fixed(scan)
    maps = _linear_ops(accumulator, is_fixed)
    if not maps:
        return None
    elsewhere = {op for op in maps if not _is_only_added(op, maps, accumulator)}
    model = cost_model()

    def summed(value: Value) -> float:
        """Reading a value, and reading and writing its sum."""
        chain = added(value)
        return model.added_up(chain.nbytes if chain.starts_at_zero else value.nbytes)

    def stays(op: Op) -> float:
        return 0 if op in elsewhere else model.run([op])

    leaves = cheapest_leaves(
        accumulator.terms,
        lambda v: v.op if v.op in maps else None,
        lambda op: maps[op],
        lambda v: price(summed(v)),
        lambda op: price(model.run([op]) / scan.length),
        lambda op: price(stays(op)),
    )
    if not leaves.isdisjoint(accumulator.terms):
        return None
    ops = backward_slice(accumulator.terms, lambda v: v in leaves or not scan.body.defines(v))
    gone = sum(stays(op) for op in ops if op in maps) + sum(map(summed, accumulator.terms))
    saved = gone - sum(map(summed, leaves))
    order = [v for v in dict.fromkeys(v for op in ops for v in op.operands) if v in leaves]
    return MappedSum(accumulator, tuple(order), tuple(ops), saved)


def _fixed(scan: Scan) -> Callable[[Value], bool]:
    """Whether a value is the same in each step of a loop."""
    fixed = set[Value]()
    for op in scan.body.ops:
        made_of = (v in fixed or not scan.body.defines(v) for v in op.operands)
        if not op.regions and can_move(op) and all(made_of):
            fixed.update(op.results)
    return lambda value: value in fixed or not scan.body.defines(value)


def _linear_ops(
    accumulator: Accumulator, is_fixed: Callable[[Value], bool]
) -> dict[Op, list[Value]]:
    """The ops of a step that lead to its terms and are linear in what changes, and what that is."""
    found: dict[Op, list[Value]] = {}
    pending = list(accumulator.terms)
    while pending:
        op = pending.pop().op
        if op is None or op in found or not can_move(op):
            continue
        moving = linear_operands(op, is_fixed)
        # Condition 2 of map-sums-once.
        if moving is None:
            continue
        # Condition 4 of map-sums-once.
        if not all(_is_as_exact(v, accumulator.carry.param) for v in moving):
            continue
        found[op] = moving
        pending.extend(moving)
    return found


def _is_as_exact(value: Value, total: Value) -> bool:
    """Whether a sum of such values loses no more digits than one of the terms."""
    if not dtypes.is_inexact(value.dtype) or not compat_types.is_local(value.aval):
        return False
    return bool(dtypes.precision(value.dtype) >= dtypes.precision(total.dtype))


def _is_only_added(op: Op, maps: dict[Op, list[Value]], accumulator: Accumulator) -> bool:
    """Whether a step needs what an op makes for its terms alone."""
    return all(user in maps or user in accumulator.sums for v in op.results for user in v.users)
