"""How often a fusion computes an element that it reads at several places: neighbours.

XLA computes an op inside the fusions that read it. Where one reads it shifted, too, it computes an
element for each place, and what that is made of as often again::

    b = add (slice a :-1) (slice a 1:)        # each element of `a` twice
    c = add (slice b :-1) (slice b 1:)        # of `b` twice, so of `a` four times

Nor does it compute several such elements at once. If `b` is stored, `c` reads it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping

from jaxpr_opt.analysis.residuals.cuts import residuals
from jaxpr_opt.analysis.residuals.stack_consumers import routes
from jaxpr_opt.bridge.parameters import permutation_of, starts_of, strides_of
from jaxpr_opt.cost.fusion import PUT_TOGETHER
from jaxpr_opt.ir.graph import Op, Region, Scan, Value, is_sized
from jaxpr_opt.ir.traits import is_arithmetic

Numbers = dict[Value, dict[Hashable, float]]
"""How many elements of a value are read, at each place."""


def times_read(scan: Scan) -> Mapping[Value, float]:
    """How often each element is computed of a value of which basic arithmetic makes residuals, if
    none of these is stored; without values of which each is computed once.
    """
    numbers: Numbers = defaultdict(dict)
    readers: dict[Region | None, Numbers] = {}
    for stack, value in residuals(scan, nests=True):
        rows = [row for _, row in routes(stack.result, nests=True) or ()]
        for region in (row.region for row in rows if row.region not in readers):
            readers[region] = _read_in(region)
        if is_sized(value.shape):
            times = max((_times(row, readers[row.region]) for row in rows), default=1.0)
            numbers[value][None] = value.size * times
    return _spread_back(scan.body, numbers)


def _read_in(region: Region | None) -> Numbers:
    """How many elements of each value are read where the step of a reader computes."""
    numbers: Numbers = defaultdict(dict)
    for op in region.ops if region is not None else ():
        for value in () if _is_fused(op) else op.operands:
            numbers[value][None] = value.size if is_sized(value.shape) else 0.0
    if region is not None:
        _spread_back(region, numbers)
    return numbers


def _spread_back(region: Region, numbers: Numbers) -> Mapping[Value, float]:
    """How often each element is computed of what fused ops make, if more than once; what they read
    is noted.
    """
    found: dict[Value, float] = {}
    for op in reversed(tuple(region.ops)):
        if not _is_fused(op) or op.result not in numbers:
            continue
        times = _times(op.result, numbers)
        if times > 1:
            found[op.result] = times
        for value in op.operands:
            places, read = numbers[value], times * min(value.size, op.result.size)
            place = _place(op)
            places[place] = max(places.get(place, 0.0), read)
    return found


def _times(value: Value, numbers: Numbers) -> float:
    return max(sum(numbers[value].values()) / max(value.size, 1), 1.0) if value in numbers else 1.0


def _is_fused(op: Op) -> bool:
    is_simple = len(op.results) == 1 and (is_arithmetic(op) or op.name in PUT_TOGETHER)
    return is_simple and all(is_sized(v.shape) for v in (*op.operands, *op.results))


def _place(op: Op) -> Hashable:
    """Where an op reads the element that it makes: None for the same place."""
    if any(user.name in PUT_TOGETHER for user in op.result.users):
        return op
    if op.name == "slice":
        starts, strides = starts_of(op), strides_of(op)
        return (starts, strides) if any(starts) or set(strides) - {1} else None
    if op.name == "transpose":
        return permutation_of(op)
    return op if op.name == "rev" or op.name in PUT_TOGETHER else None
