"""The values that a value is made of, and the values that are made of it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Call, Cond, Op, Region, Scan, Use, Value, While


def inputs(op: Op) -> tuple[Value, ...]:
    """The values that an op reads: its operands, then outer values that its regions read."""
    return _with_captures(op) if op.regions else op.operands


@remembered
def _with_captures(op: Op) -> tuple[Value, ...]:
    return (*op.operands, *(v for region in op.regions for v in region.captures()))


def reads(ops: Iterable[Op]) -> set[Value]:
    """Every value that these ops, or ops inside them, read."""
    return {value for op in ops for inner in op.walk() for value in inner.operands}


def users_through(value: Value, passes_on: Callable[[Op], bool]) -> Iterator[Op]:
    """The ops that read a value, or what ops that pass it on make of it."""
    pending = [value]
    for each in pending:
        yield from each.users
        pending += [user.result for user in each.users if passes_on(user)]


def source_through(value: Value, passes_on: Callable[[Op], bool]) -> Value:
    """The value from which ops that pass on their first operand make this one."""
    while value.op is not None and passes_on(value.op):
        value = value.op.operands[0]
    return value


def other_side(value: Value) -> Value | None:
    """The array that a loop streams, for its row; the row that a loop stacks, for its array; None
    for any other value.
    """
    op, owner = value.op, value.region.owner if value.region is not None else None
    if isinstance(op, Scan):
        stack = op.stack_of(value)
        return stack.value if stack is not None else None
    stream = owner.stream_of(value) if isinstance(owner, Scan) else None
    return stream.operand if stream is not None else None


def stacked_row(value: Value) -> tuple[Value, Scan] | None:
    """What another loop has stacked for the row that a loop streams, and that loop; None if it
    streams anything else.
    """
    rows = other_side(value) if value.op is None else None
    row, maker = (other_side(rows), rows.op) if rows is not None else (None, None)
    return (row, maker) if row is not None and isinstance(maker, Scan) else None


def handed_to(use: Use) -> tuple[Value, ...]:
    """What is made of a value where it is read: the results of an op; at a loop, a call or a
    region's end, what it is called behind that.
    """
    op, n = use
    if op.is_terminator:
        return _handed_out(op.region, n)
    match op:
        case Scan():
            return (op.body.params[n], *(op.results[n : n + 1] if n < op.num_carries else ()))
        case While():
            return (op.predicate.params[n], op.body.params[n], op.results[n])
        case Call():
            return (op.body.params[n],)
        case Cond():
            return ()
    return op.results


def _handed_out(region: Region | None, n: int) -> tuple[Value, ...]:
    """What the value that a region yields at a place is called behind its end."""
    match owner := region.owner if region is not None else None:
        case Scan() if n < owner.num_carries:
            return (owner.body.params[n], owner.results[n])
        case While() if region is owner.predicate:
            return ()
        case While():
            return (owner.predicate.params[n], owner.body.params[n], owner.results[n])
        case Op():
            return (owner.results[n],)
    return ()


def depending_on(values: Iterable[Value], ops: Iterable[Op]) -> dict[Op, None]:
    """The ops that depend on one of `values`, in order; `ops` are in program order."""
    tainted = set(values)
    found: dict[Op, None] = {}
    for op in ops:
        if not tainted.isdisjoint(inputs(op)):
            found[op] = None
            tainted.update(op.results)
    return found


def backward_slice(roots: Iterable[Value], stop: Callable[[Value], bool]) -> list[Op]:
    """Ops that compute `roots`, in program order per region, not looking behind values for which
    `stop` holds.

    An op with regions brings what its regions capture.  Shared by everything that moves or clones
    code.
    """
    order: dict[Op, None] = {}
    visited: set[Value] = set()
    stack: list[tuple[Value, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        value, done = stack.pop()
        op = value.op
        if op is None or op in order:
            continue
        if done:
            order[op] = None
            continue
        if value in visited or stop(value):
            continue
        visited.add(value)
        stack.append((value, True))
        stack.extend((v, False) for v in reversed(inputs(op)))
    return list(order)


class _Ops:
    """Ops of a region that wait for their turn, each once."""

    def __init__(self, region: Region | None) -> None:
        self._region = region
        self._heap: list[tuple[int, int, Op]] = []
        self._seen: set[Op] = set()

    def __iter__(self) -> Iterator[Op]:
        while self._heap:
            yield heapq.heappop(self._heap)[-1]

    def _wait(self, op: Op, sign: int) -> None:
        if op not in self._seen and op.region is self._region is not None:
            self._seen.add(op)
            heapq.heappush(self._heap, (sign * self._region.order(op), len(self._seen), op))


class Makers(_Ops):
    """The ops of one result in a region that make values, each once, last to first."""

    def add(self, value: Value) -> None:
        if value.op is not None and len(value.op.results) == 1:
            self._wait(value.op, -1)


class Readers(_Ops):
    """The ops of a region that read values, each once, first to last."""

    def add(self, value: Value) -> None:
        for op in value.users:
            self._wait(op, 1)
