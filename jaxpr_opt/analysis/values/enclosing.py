"""Where an op is: in which loop, in which program, and before which readers of an array."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Cond, Graph, Op, Region, Scan, Value, While
from jaxpr_opt.ir.nesting import is_after, program_of


def loop_body(op: Op) -> Region | None:
    """The body of a loop, if the op is directly in one."""
    loop = op.parent
    return op.region if isinstance(loop, Scan | While) and op.region is loop.body else None


def loop_of(op: Op) -> Scan | While | None:
    """The loop whose body has the op, at any depth of branches; None if there is none."""
    around = op.parent
    while isinstance(around, Cond):
        around = around.parent
    return around if isinstance(around, Scan | While) else None


def is_argument(array: Value) -> bool:
    """Whether a value is an argument of the program."""
    return isinstance(array.owner, Region) and isinstance(array.owner.owner, Graph)


@remembered
def is_differentiated(loop: Op) -> bool:
    """Whether the program around a loop computes cotangents, unless each step of the loop computes
    all of its own.
    """
    program = program_of(loop)
    if program is None:
        return False
    within = {op for region in loop.regions for op in region.walk()}
    transposed = (op for op in program.walk() if op.source.transposed)
    return bool(program.cotangents) or any(op not in within for op in transposed)


def is_read_after(array: Value, op: Op, but: Collection[Op] = ()) -> bool:
    """Whether another op may read `array` after `op` has run, other than `but`."""
    return is_read_twice(array, op) or any(readers_after(array, op, but))


def is_read_twice(array: Value, op: Op) -> bool:
    """Whether an op has an array as several of its operands."""
    return sum(use.op is op for use in array.uses) > 1


def readers_after(array: Value, op: Op, but: Collection[Op] = ()) -> Iterator[Op]:
    """The ops, other than `but`, that may read `array` after `op` has run."""
    others = (user for user in array.users if user is not op and user not in but)
    return (user for user in others if is_after(user, op))
