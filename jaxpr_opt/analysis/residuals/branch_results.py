"""Results of branches that one loop stacks and another one reads in branches.

JAX gives the branches of a cond one set of residuals: result `k` is whatever value of the type a
branch has for the transpose, another one in each branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.analysis.residuals.counterparts import counterparts
from jaxpr_opt.analysis.residuals.cuts import outermost
from jaxpr_opt.analysis.residuals.stack_consumers import Route, Rows, routes
from jaxpr_opt.analysis.values.constants import identity, is_undefined
from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.analysis.values.step_numbers import counted_alike
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.ir.graph import Cond, Constant, Op, Outcome, Region, Scan, Stack, Value
from jaxpr_opt.ir.traits import is_arithmetic

Read = tuple[Route, Value, int, Region]
"""A row at the end of a route, read in a branch: its number, and the branch."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A stack of a result that is another value in each branch, and where its rows are read."""

    stack: Stack
    outcome: Outcome
    reads: tuple[Read, ...]


def shared_results(scan: Scan, cond: Cond) -> Iterator[Shared]:
    """The stacks of results of a cond that several branches give a value of their own."""
    stacked = {stack.value: stack for stack in scan.stacks}
    for outcome in cond.outcomes:
        stack = stacked.get(outcome.result)
        given = {identity(v) for v in outcome.values if not is_undefined(v)}
        # Condition 1 of split-branch-results.
        if stack is None or len(given) < 2 or len(outcome.result.uses) > 1:
            continue
        reads = _reads(scan, cond, stack)
        if reads:
            yield Shared(stack, outcome, reads)


def costs_nothing(value: Value, shared: Shared, scan: Scan, cond: Cond) -> bool:
    """Whether a reader may have what a branch gives without a stack: it is defined outside of the
    loops, or basic arithmetic makes it in the branch.
    """
    if is_undefined(value):
        return False
    nest = outermost(scan, [(shared.stack, value)])
    is_made = cond.defines(value) and value.op is not None and is_arithmetic(value.op)
    return is_made or not nest.body.defines(value)


def _reads(scan: Scan, cond: Cond, stack: Stack) -> tuple[Read, ...] | None:
    """Where rows of a stack are read; None if not only in branches that are taken as in `cond`."""
    found: list[Read] = []
    # Condition 1 of split-branch-results.
    for route, row in routes(stack.result, nests=True) or ():
        last = route[-1]
        assert isinstance(last, Rows)
        branches: dict[Region, int] = {}
        for use in row.uses:
            branch = _branch(use.op, last.scan, scan, cond, route)
            # Condition 2 of split-branch-results.
            if branch is None:
                return None
            branches[branch[0]] = branch[1]
        found += ((route, row, number, region) for region, number in branches.items())
    return tuple(found)


def _branch(
    op: Op, reader: Scan, scan: Scan, cond: Cond, route: Route
) -> tuple[Region, int] | None:
    """The branch around an op that is taken where `cond` takes the one of its number."""
    region = op.region
    while region is not None and region is not reader.body and isinstance(region.owner, Op):
        other = region.owner
        if isinstance(other, Cond) and _chooses_alike(other, reader, scan, cond, route):
            return region, other.branches.index(region)
        region = other.region
    return None


def _chooses_alike(other: Cond, reader: Scan, scan: Scan, cond: Cond, route: Route) -> bool:
    """Whether a cond of a reader's step takes the branch that another one took in that step."""
    found = counterparts(scan, route, ())
    # Condition 2 of split-branch-results.
    if found is None or len(other.branches) != len(cond.branches):
        return False
    renamed = {there: param for param, there in found.names.items()}

    def alike(there: Value, here: Value) -> bool:
        if counted_alike(scan, reader, there, here):
            return True
        mine, its = _only_case(there), _only_case(here)
        is_asked = mine is not there or its is not here
        return is_asked and same_expression(mine, its, renamed, alike)

    if same_expression(cond.selector, other.selector, renamed, alike):
        return True
    asked = _truth(other.selector)
    return other.selector.dtype == bool and _truth(found.names.get(asked, asked)) is _truth(
        cond.selector
    )


def _only_case(value: Value) -> Value:
    """A value, or the one that a select between it and itself chooses, as `ask-about-choices` asks
    for it.
    """
    op = value.op
    is_case = op is not None and op.name == "select_n" and len(set(op.operands[1:])) == 1
    return op.operands[1] if op is not None and is_case else value


def _truth(value: Value) -> Value:
    """What is not zero where a truth value is true: ``(int)p != 0``."""
    while (op := value.op) is not None:
        zero = op.operands[1] if op.name == "ne" else None
        is_asked = isinstance(zero, Constant) and zero.scalar == 0
        of_integers = all(dtypes.is_integer(v.dtype) or v.dtype == bool for v in op.operands)
        if not of_integers or not (op.name == "convert_element_type" or is_asked):
            break
        if value.dtype != bool and op.operands[0].dtype != bool:
            break  # a conversion to fewer bits may lose what is not zero
        value = op.operands[0]
    return value
