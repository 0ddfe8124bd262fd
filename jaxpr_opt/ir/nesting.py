"""The regions, loops, calls and program around an op, and the values that it may read there."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from jaxpr_opt.ir.graph import Call, Cond, Constant, Graph, Op, Phase, Region, Scan, Value, While


def with_parents(op: Op | None) -> Iterator[Op]:
    """An op, and those that it is in, the innermost first; nothing if there is none."""
    while op is not None:
        yield op
        op = op.parent


def is_in_a_loop(op: Op) -> bool:
    """Whether an op is in a loop, at any depth of branches."""
    return any(isinstance(around, Scan | While) for around in with_parents(op.parent))


def runs(op: Op) -> int:
    """How often the loops around an op run it. Loops of unknown length count once."""
    return prod(around.length for around in with_parents(op.parent) if isinstance(around, Scan))


def program_of(op: Op) -> Graph | None:
    """The program that an op is in."""
    return program_around(op.region)


def program_around(region: Region | None) -> Graph | None:
    """The program that a region is in."""
    while region is not None:
        owner = region.owner
        if not isinstance(owner, Op):
            return owner
        region = owner.region
    return None


def phase_of(op: Op) -> Phase | None:
    """Which transformations the program that an op is in may still go through."""
    program = program_of(op)
    return program.phase if program is not None else None


def enclosing_shard_map(op: Op) -> Call | None:
    """The innermost `shard_map` whose body `op` is in."""
    found = (op for op in with_parents(op.parent) if op.name == "shard_map")
    around = next(found, None)
    return around if isinstance(around, Call) else None


def dominates(value: Value, op: Op) -> bool:
    """Whether `value` may be used as an operand of `op` (or of an op inserted right before it)."""
    if isinstance(value, Constant):
        return True
    home = value.region
    ancestor: Op | None = op
    while ancestor is not None and ancestor.region is not None and ancestor.region is not home:
        if isinstance(ancestor.region.owner, Call):
            return False
        ancestor = ancestor.parent
    if home is None or ancestor is None or ancestor.region is not home:
        return False
    producer = value.op
    return producer is None or home.order(producer) < home.order(ancestor)


def is_after(op: Op, spot: Op) -> bool:
    """Whether an op may run after another has: not so in another branch."""
    region = spot.region
    assert region is not None
    around = region.ancestor(op)
    if around is None:
        return not isinstance(spot.parent, Cond) or is_after(op, spot.parent)
    return around is not spot and region.order(around) > region.order(spot)


def is_not_before(op: Op, spot: Op) -> bool:
    """Whether an op is another one, or in it, or may run after it."""
    assert spot.region is not None
    return spot.region.ancestor(op) is spot or is_after(op, spot)
