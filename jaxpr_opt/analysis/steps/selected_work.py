"""Which ops run for one case of some selects only."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from jaxpr_opt.ir.graph import Op, Region, Value
from jaxpr_opt.ir.inputs import inputs
from jaxpr_opt.ir.traits import can_move


def only_for(selects: Sequence[Op], case: int, region: Region) -> tuple[Op, ...]:
    """The ops of a region, in order, whose results are read only for one case of these selects."""
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
        if can_move(op) and all(_is_for(v, selects, case, found, region) for v in op.results):
            found[op] = None
            read = inputs(op)


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
