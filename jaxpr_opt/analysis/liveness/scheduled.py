"""In which order a device runs the ops of a region that have arrays in memory.

XLA:CPU starts each op as soon as its operands are there.  What became ready first runs first,
however late it is read; of ops that become ready at once, reductions run last, and their operands
stay in memory beside what other ops make of them.  So a copy of an argument that only the last op
reads is made at once, and stays to the end.  The results of an optimization barrier wait for all of
its operands.  Other devices run ops in the order of the program, as far as is known.

An op that needs an operand in another layout reads a copy.  Ops that need the same copy share it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from jaxpr_opt.analysis.liveness.fused import Fused, Read
from jaxpr_opt.cost.layouts import Copy
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.graph import Op, Region, Value
from jaxpr_opt.ir.traits import REDUCING


class Run(NamedTuple):
    """An op that runs, or a copy of one of its operands that is made."""

    op: Op
    copy: Copy | None
    """The copy, if it is one."""
    read: Read
    """The arrays that are read."""
    done: Sequence[Copy] = ()
    """The copies that no later op reads."""


_Item = Op | Copy


def scheduled(region: Region, found: Fused) -> Iterator[Run]:
    """The ops of a region whose results are in memory, as they run; the terminator is the last."""
    model = cost_model()
    readers = {op: Counter(model.rearranged(op)) for op in found.read}
    left = Counter[Copy](copy for made in readers.values() for copy in made)
    first = {copy: op for op in reversed(readers) for copy in readers[op]}
    for item in _breadth_first(region, found) if model.is_breadth_first else _as_written(found):
        if isinstance(item, Copy):
            yield Run(first[item], item, dict.fromkeys(found.copied[item.of], False))
        elif not item.is_terminator:
            left -= readers[item]
            done = [copy for copy in readers[item] if not left[copy]]
            yield Run(item, None, _read(item, found), done)
    yield Run(region.terminator, None, found.read[region.terminator])


def _read(op: Op, found: Fused) -> Read:
    """The arrays that an op reads once its operands are copied."""
    copies = cost_model().rearranged(op)
    if not copies:
        return found.read[op]
    rest = Counter(op.operands)
    rest.subtract(copy.of for copy in copies)
    arrays = (found.arrays(value) for value, count in rest.items() if count)
    return dict.fromkeys((array for each in arrays for array in each), False)


def _as_written(found: Fused) -> Iterator[_Item]:
    """Ops and copies, in the order of the program."""
    made = set[Copy]()
    for op in found.read:
        new = dict.fromkeys(copy for copy in cost_model().rearranged(op) if copy not in made)
        made.update(new)
        yield from new
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
        ready += sorted((each for each in readers[item] if not waiting[each]), key=_reduces)


def _reduces(item: _Item) -> bool:
    """Whether an item is an op that reduces an array."""
    return not isinstance(item, Copy) and item.name in REDUCING


def _needed(region: Region, found: Fused) -> Iterator[tuple[_Item, Set[_Item]]]:
    """Ops and copies in the order of the program, with those whose results each has to wait for."""
    made, copied = dict[Value, Set[_Item]](), set[Copy]()
    for op in region.ops:
        needed = set[_Item]().union(*(made.get(value, ()) for value in inputs(op)))
        if op not in found.read:
            made |= dict.fromkeys(op.results, needed)
            continue
        for copy in dict.fromkeys(cost_model().rearranged(op)):
            if copy not in copied:
                copied.add(copy)
                yield copy, made.get(copy.of, frozenset())
            needed.add(copy)
        yield op, needed
        made |= dict.fromkeys(op.results, frozenset({op}))
