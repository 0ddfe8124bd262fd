"""In which order a device runs the ops of a region that have arrays in memory.

XLA:CPU computes ops side by side: it starts each as soon as all that it reads is there, and what
became ready first runs first, however late it is read.  (Others run ops in the order of the
program, as far as is known.)  So a copy of an argument that only the last op reads is made at
once, and is there to the end; what goes through an optimization barrier waits for all of it.

An op whose operands have to be laid out anew reads copies of them, which are made like that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Set
from typing import NamedTuple

from jaxpr_opt.analysis.liveness.fused import Fused, Read
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.reuse import buffer_of
from jaxpr_opt.ir.graph import Op, Region, Value
from jaxpr_opt.ir.inputs import inputs


class Run(NamedTuple):
    """An op that runs, or the copy of one of its operands."""

    op: Op
    of: Value | None
    """The operand that is copied."""
    read: Read
    """The arrays that are read."""
    copied: int
    """Bytes of copies that are there, of what it or later ops read."""


class _Copy(NamedTuple):
    """A copy of an array, for an op."""

    op: Op
    of: Value


_Item = Op | _Copy


def scheduled(region: Region, found: Fused) -> Iterator[Run]:
    """The ops of a region whose results are in memory, as they run; the terminator is the last."""
    model, copied = cost_model(), 0
    for item in _breadth_first(region, found) if model.is_breadth_first else _as_written(found):
        if isinstance(item, _Copy):
            copied += item.of.nbytes
            arrays = dict.fromkeys(found.arrays(item.of), False)
            yield Run(item.op, item.of, arrays, copied)
        elif not item.is_terminator:
            again = model.rearranged(item)
            read = found.read[item]
            if again:
                rest = (buffer_of(v) for v in item.operands if v not in again)
                read = dict.fromkeys(rest, False)
            yield Run(item, None, read, copied)
            copied -= sum(value.nbytes for value in again)
    yield Run(region.terminator, None, found.read[region.terminator], copied)


def _as_written(found: Fused) -> Iterator[_Item]:
    """Ops and copies, in the order of the program."""
    for op in found.read:
        yield from (_Copy(op, value) for value in cost_model().rearranged(op))
        yield op


def _breadth_first(region: Region, found: Fused) -> Iterator[_Item]:
    """Ops and copies, in the order in which they become ready."""
    waiting, readers = dict[_Item, int](), dict[_Item, list[_Item]]()
    for item, needed in _needed(region, found):
        waiting[item] = len(needed)
        readers[item] = []
        for each in needed:
            readers[each].append(item)
    ready = deque(item for item, count in waiting.items() if not count)
    while ready:
        item = ready.popleft()
        yield item
        for reader in readers[item]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)


def _needed(region: Region, found: Fused) -> Iterator[tuple[_Item, Set[_Item]]]:
    """Ops and copies in the order of the program, with those whose results each has to wait for."""
    made = dict[Value, Set[_Item]]()
    for op in region.ops:
        needed = set[_Item]().union(*(made.get(value, ()) for value in inputs(op)))
        if op not in found.read:
            made |= dict.fromkeys(op.results, needed)
            continue
        for value in cost_model().rearranged(op):
            copy = _Copy(op, value)
            yield copy, made.get(value, frozenset())
            needed.add(copy)
        yield op, needed
        made |= dict.fromkeys(op.results, frozenset({op}))
