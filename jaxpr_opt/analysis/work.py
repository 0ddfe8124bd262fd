"""What a program does over a whole run, op by op: bytes touched and operations, loops unrolled.

`jaxpr_opt.analysis.cost` prices every op by itself.  Here an array that is written in place costs
the window that is written, one that is copied first all of it; so the work of a loop grows with
its length as its time does:

- a write into a buffer that it may take over (`jaxpr_opt.analysis.reuse`) touches its window, and
  so does adding zeros with a window in them, ``c + zeros.at[i].set(x)``, as XLA rewrites it;
- a carry costs a step nothing but what the step does with it, entering a loop is free if the loop
  may have the buffer;
- what is spread out (a broadcast, an iota) exists where a loop carries it, a region yields it, or
  something is written into it.

Of a cond's branches the dearest counts.  How often a `while` runs is unknown: its work is that of
one iteration, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.analysis.cost import cost
from jaxpr_opt.analysis.reuse import buffer_of, is_view, takes_over
from jaxpr_opt.importer import import_jaxpr
from jaxpr_opt.ir import Call, Cond, Graph, Op, Region, Remat, Scan, Use, Value, While
from jaxpr_opt.traits import spreads

READS = frozenset({"dynamic_slice", "gather", "slice", "split"})
"""Of the first operand no more is touched than what is read of it."""
WRITES = frozenset({
    "dynamic_update_slice", "scatter", "scatter-add", "scatter-max", "scatter-min", "scatter-mul",
    "scatter-sub",
})  # fmt: skip
"""The result is the first operand, but for a window that the other operands tell."""
ADDS = frozenset({"add", "add_any"})


@dataclass(frozen=True, slots=True)
class Work:
    """What an op does in a run: bytes touched and floating point operations, added up."""

    op: Op
    amount: int
    loop: While | None
    """The innermost `while` around it: then the amount is that of one iteration."""


def works(graph: Graph) -> tuple[Work, ...]:
    """The work of a program, op by op; ops that do nothing are left out."""
    return tuple(work for work in _of_region(graph.body, 1, None) if work.amount)


def _of_region(region: Region, times: int, loop: While | None) -> Iterator[Work]:
    for op in region.ops:
        yield from _of_op(op, times, loop)


def _of_op(op: Op, times: int, loop: While | None) -> Iterator[Work]:
    """The work of an op that runs so many times."""
    match op:
        case Scan():
            yield from _entering(op, times, loop)
            yield from _of_region(op.body, times * op.length, loop)
            yield from _leaving(op, times * op.length, loop)
            for stack in op.stacks:
                maker = stack.value.op or op
                yield Work(maker, times * op.length * stack.value.nbytes, loop)
        case While():
            yield from _entering(op, times, loop)
            for region in op.regions:
                yield from _of_region(region, times, op)
            yield from _leaving(op, times, op)
        case Cond():
            branches = [[*_of_branch(branch, times, loop)] for branch in op.branches]
            yield from max(branches, key=lambda works: sum(work.amount for work in works))
        case Remat() | Call():
            yield from _of_branch(op.body, times, loop)
        case _ if "call_jaxpr" in op.params:
            body = import_jaxpr(op.params["call_jaxpr"]).body
            yield from _of_region(body, times, loop)
        case _:
            yield Work(op, times * _once(op), loop)


def _entering(op: Scan | While, times: int, loop: While | None) -> Iterator[Work]:
    """Copies of what is carried into a loop and needed afterwards."""
    copied = (c.init for n, c in enumerate(op.carries) if not takes_over(Use(op, n)))
    yield Work(op, times * sum(value.nbytes for value in copied), loop)


def _leaving(op: Scan | While, times: int, loop: While | None) -> Iterator[Work]:
    """Copies of what a step does not compute and hands to the next one as another carry."""
    for carry in op.carries:
        root = buffer_of(carry.next)
        if root is not carry.param and (root.op is None or root.region is not op.body):
            yield Work(op, times * root.nbytes, loop)


def _of_branch(branch: Region, times: int, loop: While | None) -> Iterator[Work]:
    """The work of a region that runs in place, and copies of what it yields and did not make."""
    yield from _of_region(branch, times, loop)
    end = branch.terminator
    for position, value in enumerate(end.operands):
        if buffer_of(value).region is not branch and not takes_over(Use(end, position)):
            yield Work(end, times * value.nbytes, loop)


def _once(op: Op) -> int:
    """Bytes touched and operations of a first-order op."""
    if op.is_terminator or is_view(op) or _is_embedding(op):
        return 0
    if spreads(op):
        return op.result.nbytes if _must_exist(op.result) else 0
    if op.name in READS:
        return _bytes(*op.results, *op.operands[1:])
    if op.name in WRITES:
        return _bytes(*op.operands[1:]) + _copied(op, 0)
    if op.name in ADDS:
        for position in (0, 1):
            window = op.operands[1 - position].op
            if window is not None and _is_embedding(window):
                return 2 * _bytes(*window.operands[1:]) + _copied(op, position)
    return _bytes(*op.operands, *op.results) + (cost(op).flops or 0)


def _bytes(*values: Value) -> int:
    return sum(value.nbytes for value in values)


def _copied(op: Op, position: int) -> int:
    """Bytes read and written before an op can write into an operand."""
    return 0 if takes_over(Use(op, position)) else 2 * op.operands[position].nbytes


def _is_embedding(op: Op) -> bool:
    """Whether it makes zeros with a window in them that are only added to something."""
    if op.name not in WRITES or len(op.result.uses) != 1:
        return False
    base, (user,) = buffer_of(op.operands[0]).op, op.result.users
    return base is not None and base.name == "broadcast_in_dim" and user.name in ADDS


def _must_exist(value: Value) -> bool:
    """Whether what is spread out must be there as an array."""
    return any(
        op.is_terminator
        or bool(op.regions)
        or (is_view(op) and _must_exist(op.results[position]))
        or (op.name in WRITES and position == 0 and not _is_embedding(op))
        for op, position in value.uses
    )
