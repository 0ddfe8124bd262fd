"""Carries of a loop that add up what its steps make, and that no step reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.bridge import dtypes
from jaxpr_opt.ir.graph import Carry, Op, Scan, Value
from jaxpr_opt.ir.traits import SUMS


@dataclass(frozen=True, slots=True, eq=False)
class Accumulator:
    """A carry to which each step adds some terms."""

    carry: Carry
    sums: tuple[Op, ...]
    """The additions of a step, in order: the first adds to the carry, the last makes the next."""
    terms: tuple[Value, ...]
    """What each of them adds."""


def accumulators(scan: Scan) -> Iterator[Accumulator]:
    """The carries of numbers that are no integers to which a loop only adds."""
    for carry in scan.carries:
        found = _accumulator(carry) if dtypes.is_inexact(carry.param.dtype) else None
        if found is not None:
            yield found


def _accumulator(carry: Carry) -> Accumulator | None:
    sums: list[Op] = []
    terms: list[Value] = []
    value = carry.param
    while True:
        # Condition 1 of map-sums-once.
        if len(value.uses) != 1:
            return None
        ((op, position),) = value.uses
        if op.is_terminator:
            # Condition 1 of map-sums-once.
            return Accumulator(carry, tuple(sums), tuple(terms)) if value is carry.next else None
        # Condition 1 of map-sums-once.
        if op.name not in SUMS:
            return None
        sums.append(op)
        terms.append(op.operands[1 - position])
        value = op.result
