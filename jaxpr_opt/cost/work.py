"""The work of a program over a whole run, op by op: bytes touched and operations, loops unrolled.

`jaxpr_opt.cost.ops` prices every op by itself.  Here an array that is written in place costs
the window that is written, one that is copied first all of it; so the work of a loop grows with
its length as its time does:

- a write into a buffer that it may take over (`jaxpr_opt.cost.reuse`) touches its window; so
  do, as XLA rewrites them, a choice between writing and not, ``where(p, c.at[i].set(x), c)`` for
  one `p`, and adding zeros with windows in them, ``c + zeros.at[i].set(x)``;
- a carry costs a step nothing but what the step does with it, entering a loop is free if the loop
  may have the buffer;
- what is the same in every step is done once;
- what is spread out (a broadcast, an iota) exists where a loop carries it, a region yields it, or
  something is written into it.

Of a cond's branches the dearest counts.  How often a `while` runs is unknown: its work is that of
one iteration, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from jaxpr_opt.bridge.parameters import callee_of
from jaxpr_opt.cost.ops import cost
from jaxpr_opt.cost.reuse import buffer_of, is_view, takes_over, uses_of
from jaxpr_opt.cost.windows import READS, WINDOW_WRITES, windows_of
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import (
    Call,
    Cond,
    Constant,
    Graph,
    Op,
    Region,
    Remat,
    Scan,
    Use,
    Value,
    While,
)
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.traits import SUMS, is_broadcast, is_pure


@dataclass(frozen=True, slots=True)
class Work:
    """What an op does in a run: bytes touched and floating point operations, added up."""

    op: Op
    amount: int
    loop: While | None
    """The innermost `while` that it is repeated by: then the amount is that of one iteration."""
    times: int = 1
    """How often it runs."""
    stacks: Scan | None = None
    """The loop that stacks what the op makes, if this is the work of stacking it."""


def works(graph: Graph) -> tuple[Work, ...]:
    """The work of a program, op by op; ops that do nothing are left out."""
    return tuple(work for work in _Walker().region(graph.body) if work.amount)


@dataclass(frozen=True, slots=True)
class _Repeated:
    """What runs inside of some loops."""

    times: int = 1
    loop: While | None = None


@dataclass(slots=True)
class _Walker:
    """Goes through a program, and knows the loops it is in."""

    around: list[_Repeated] = field(default_factory=lambda: [_Repeated()])
    """What runs inside of no loop, of the outermost, ..., of the innermost."""
    depths: dict[Value, int] = field(default_factory=dict)
    """In how many of the loops around a value it is another one in each step, if in any."""

    def region(self, region: Region) -> Iterator[Work]:
        for op in region.ops:
            yield from self.op(op)

    def op(self, op: Op) -> Iterator[Work]:
        depth = self._depth(op)
        self.depths.update(dict.fromkeys(op.results, depth))
        match op:
            case Scan() | While():
                yield from self._loop(op)
            case Cond():
                branches = [[*self._branch(branch)] for branch in op.branches]
                yield from max(branches, key=lambda works: sum(work.amount for work in works))
            case Remat() | Call():
                yield from self._branch(op.body)
            case _ if callee_of(op) is not None:
                yield from self.region(import_jaxpr(callee_of(op)).body)
            case _:
                yield self._work(op, _once(op), depth)

    def _work(self, op: Op, amount: int, depth: int = -1) -> Work:
        repeated = self.around[depth]
        return Work(op, repeated.times * amount, repeated.loop, repeated.times)

    def _depth(self, op: Op) -> int:
        """The number of loops that repeat an op: XLA takes out what they do not change.

        What is overwritten is made, or copied, each time.
        """
        here = len(self.around) - 1
        in_body = op.region is not None and isinstance(op.region.owner, Scan | While)
        if op.regions or not in_body or not is_pure(op) or any(map(_is_handed_on, op.results)):
            return here
        return max((self.depths.get(value, 0) for value in op.operands), default=0)

    def _loop(self, op: Scan | While) -> Iterator[Work]:
        copied = (c.init for n, c in enumerate(op.carries) if not takes_over(Use(op, n)))
        yield self._work(op, _bytes(*copied))
        now = self.around[-1]
        self.around.append(
            _Repeated(now.times * op.length, now.loop)
            if isinstance(op, Scan)
            else _Repeated(now.times, op)
        )
        for region in op.regions:
            self.depths.update(dict.fromkeys(region.params, len(self.around) - 1))
            yield from self.region(region)
        yield self._work(op, _bytes(*_replaced(op)))
        if isinstance(op, Scan):
            for stack in op.stacks:
                yield replace(self._work(stack.value.op or op, stack.value.nbytes), stacks=op)
        self.around.pop()

    def _branch(self, branch: Region) -> Iterator[Work]:
        """The work of a region that runs in place; what it yields and did not make is copied."""
        yield from self.region(branch)
        end = branch.terminator
        for position, value in enumerate(end.operands):
            if buffer_of(value).region is not branch and not takes_over(Use(end, position)):
                yield self._work(end, value.nbytes)


def _replaced(op: Scan | While) -> Iterator[Value]:
    """The carries that a step takes over from another carry: each is copied."""
    for carry in op.carries:
        root = buffer_of(carry.next)
        if root is not carry.param and (root.op is None or root.region not in op.regions):
            yield root


# -- one op --------------------------------------------------------------------------------------


def _once(op: Op) -> int:
    """Bytes touched and operations of a first-order op."""
    if op.is_terminator or is_view(op) or _is_chosen(op) or any(map(embedded, op.results)):
        return 0
    if is_broadcast(op):
        return op.result.nbytes if _is_handed_on(op.result) else 0
    if op.name in READS:
        return _bytes(*op.results, *op.operands[1:])
    if op.name in WINDOW_WRITES:
        return _bytes(*op.operands[1:]) + _copied(Use(op, 0))
    if (write := _choice(op)) is not None:
        return 2 * _bytes(*write.operands[1:]) + _copied(Use(write, 0), op)
    for position in (0, 1) if op.name in SUMS else ():
        windows = embedded(op.operands[1 - position])
        if windows:
            touched = sum(_bytes(*window.operands[1:]) for window in windows)
            return 2 * touched + _copied(Use(op, position))
    return _bytes(*op.operands, *op.results) + (cost(op).flops or 0)


def _bytes(*values: Value) -> int:
    return sum(value.nbytes for value in values)


def _copied(use: Use, end: Op | None = None) -> int:
    """Bytes read and written before an op can write into an operand."""
    return 0 if takes_over(use, end) else 2 * use.op.operands[use.position].nbytes


@remembered
def embedded(value: Value) -> tuple[Op, ...]:
    """The writes into zeros that a value is the sum of, if it is only added to something.

    XLA adds their windows to that, and does not make the zeros. It makes them for windows at places
    that are known when it is compiled, and for a sum of single windows (jax 0.10 and 0.12).
    """
    op = value.op
    if op is None or len(value.uses) != 1 or value.users[0].name not in SUMS:
        return ()
    if op.name in SUMS:
        parts = [embedded(operand) for operand in op.operands]
        return tuple(chain(*parts)) if all(parts) and all(map(is_wide, chain(*parts))) else ()
    if op.name not in WINDOW_WRITES:
        return ()
    base = buffer_of(op.operands[0]).op
    indices = op.operands[2:] if op.name == "dynamic_update_slice" else op.operands[1:2]
    if base is None or base.name != "broadcast_in_dim" or all(map(_is_known, indices)):
        return ()
    return (op,)


def is_wide(op: Op) -> bool:
    """Whether it adds to several windows."""
    return op.name == "scatter-add" and windows_of(op) > 1


def _is_known(index: Value) -> bool:
    """Whether XLA sees a constant."""
    while index.op is not None and (is_broadcast(index.op) or is_view(index.op)):
        if not index.op.operands:
            return True
        index = index.op.operands[0]
    return isinstance(index, Constant)


def _choice(op: Op) -> Op | None:
    """The write whose result an op chooses, or else what the write is into; None if it does not."""
    if op.name != "select_n" or len(op.operands) != 3 or op.operands[0].shape:
        return None
    for written, kept in (op.operands[1:], op.operands[:0:-1]):
        write = written.op
        is_write = write is not None and write.name in WINDOW_WRITES and len(written.uses) == 1
        if write is not None and is_write and buffer_of(write.operands[0]) is buffer_of(kept):
            return write
    return None


def _is_chosen(op: Op) -> bool:
    """Whether it is the write of a choice."""
    return op.name in WINDOW_WRITES and any(_choice(user) is op for user in op.result.users)


def _is_handed_on(value: Value) -> bool:
    """Whether a loop carries a value, a region yields it, or something is written into it."""
    return any(
        op.is_terminator
        or bool(op.regions)
        or (op.name in WINDOW_WRITES and position == 0 and not embedded(op.result))
        for op, position in uses_of(value)
    )
