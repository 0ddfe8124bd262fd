"""Reads of what a cond makes in branches that are taken together with the one that made it."""

from __future__ import annotations

from collections.abc import Iterator

from jaxpr_opt.analysis.windows.window_primitives import UPDATING
from jaxpr_opt.ir.dataflow import backward_slice, source_through
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Region, Use, Value
from jaxpr_opt.ir.traits import is_data_movement


def reads_in_branches(cond: Cond) -> Iterator[tuple[Use, Value, Op]]:
    """Reads of results inside branches of other conds on the same selector: each with the value
    that it may read instead, and the op before which that must be made.
    """
    conds = [op for op in cond.selector.users if isinstance(op, Cond) and op is not cond]
    # Condition 3 of drop-dummy-residuals.
    others = [op for op in conds if op.chooses_with(cond)]
    for outcome in cond.outcomes if others else ():
        reads = list(_reads(outcome, cond, others))
        if len(reads) == len(outcome.result.uses) or not _updates(outcome):
            yield from reads


def _reads(outcome: Outcome, cond: Cond, others: list[Cond]) -> Iterator[tuple[Use, Value, Op]]:
    for use in outcome.result.uses:
        branch = _branch(use, others)
        if branch is None or not isinstance(branch.owner, Op):
            continue
        value = outcome.values[branch.owner.regions.index(branch)]
        before = branch.ancestor(use.op)
        assert before is not None
        # Condition 3 of drop-dummy-residuals.
        if moved_before(value, cond) is not None:
            yield use, value, before


def moved_before(value: Value, cond: Cond) -> list[Op] | None:
    """The ops of a branch that move a value from where it is defined outside; None if others make
    it.
    """
    ops = backward_slice([value], lambda v: not cond.defines(v))
    # Condition 3 of drop-dummy-residuals.
    return ops if all(map(is_data_movement, ops)) else None


def _branch(use: Use, conds: list[Cond]) -> Region | None:
    """The branch, of one of these conds, in which a read is."""
    region = use.op.region
    while region is not None and isinstance(region.owner, Op):
        # Condition 3 of drop-dummy-residuals.
        if region.owner in conds:
            return region
        region = region.owner.region
    return None


def _updates(outcome: Outcome) -> bool:
    """Whether a branch writes to windows of an array that another branch returns as it was: XLA
    does so in place, unless both versions are read.
    """
    sources = {source_through(value, lambda op: op.name in UPDATING) for value in outcome.values}
    return len(sources) < len(set(outcome.values))
