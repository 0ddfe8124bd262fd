"""Stacks that hold the same rows, shifted by one step.

A carry at the end of a step is the carry at the start of the next. If a loop stacks it at the
start, a loop that runs the other way reads it, at step `i`, one step after it would have read the
one at the end: it can carry the row from step to step, starting with the carry's last value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from jaxpr_opt.analysis.residuals.cuts import residuals
from jaxpr_opt.analysis.residuals.stack_consumers import Route, Rows, routes
from jaxpr_opt.analysis.steps.skips import Skip, find_ends, find_skip
from jaxpr_opt.analysis.steps.zero_rows import zero_rows
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Scan, Stack, Value

ShiftReader = tuple[Scan, Value]
"""A loop that reads a stack, and the row it reads in a step."""


@remembered
def shifted(scan: Scan) -> Mapping[Value, tuple[Carry, Stack]]:
    """Values at the end of a step that are stacked at the start of the next: each with its carry
    and that stack.  A carry that stays as it is has one stack only.
    """
    stacks = {stack.value: stack for stack in scan.stacks if stack.result.uses}
    return {
        c.next: (c, stacks[c.param])
        for c in scan.carries
        # Condition 1 of share-shifted-stacks.
        if c.param in stacks and not c.is_invariant
    }


def readers_back(scan: Scan, stacked: Value) -> tuple[ShiftReader, ...] | str:
    """The loops that read a stack of `scan` row by row, from the last row to the first; a string
    says why there are others.
    """
    found = routes(stacked)
    # Condition 2 of share-shifted-stacks.
    if found is None:
        return f"{stacked.label} is needed whole"
    # Condition 3 of share-shifted-stacks.
    if find_skip(scan) is not None:
        return "steps are skipped"
    if not all(_runs_back(scan, route) for route, _ in found):
        return f"{stacked.label} is read in another order than from the last step to the first"
    readers = tuple((hop.scan, row) for (hop,), row in found if isinstance(hop, Rows))
    # Condition 3 of share-shifted-stacks.
    if any(_may_begin_late(reader) for reader, _ in readers):
        return "a loop that reads it may begin with any of its rows, which data tell"
    return readers


def _may_begin_late(scan: Scan) -> bool:
    """Whether the first steps of a loop may do nothing: then it begins with another row."""
    return any(isinstance(end, Skip) for end in find_ends(scan)) or zero_rows(scan) is not None


def is_good_part(row: Value, loops: Iterable[Scan]) -> bool:
    """Whether not streaming a row, but carrying it, saves a good part of what loops stream.

    Measured on CPU, 4096 steps: networks that keep half as much take as long as before, but a loop
    that reads one row less of five took 1.0 to 1.4 times as long.  A carry more made loops of rows
    of 32 to 256 bytes 1.4 times as slow (jax 0.12) to ten times (0.10, where XLA calls each op of
    all but small loops by itself).
    """
    prices = cost_model()
    if prices.is_hidden(row.nbytes):
        return False
    return all(prices.is_noticed(row.nbytes, _streamed_bytes(scan)) for scan in set(loops))


@remembered
def _streamed_bytes(scan: Scan) -> int:
    """The bytes that a step of a loop reads of its streams."""
    return sum(stream.param.nbytes for stream in scan.streams)


def stacked_by_next_step(scan: Scan) -> Set[Value]:
    """Values that all readers of residuals can take from the row of the next step."""
    known = shifted(scan)
    if not known:
        return frozenset()
    read = [readers_back(scan, stack.result) for stack, _ in residuals(scan, nests=True)]
    readers = dict(each for found in read if not isinstance(found, str) for each in found)
    if any(isinstance(found, str) for found in read):
        return frozenset()
    return {value for value in known if is_good_part(value, readers)}


def _runs_back(scan: Scan, route: Route) -> bool:
    """Whether the way to a row is one loop that takes all steps, in the opposite order."""
    hop = route[0]
    # Condition 2 of share-shifted-stacks.
    if not isinstance(hop, Rows):
        return False  # it is split first
    # Conditions 2, 3 of share-shifted-stacks.
    return hop.scan.reverse != scan.reverse and find_skip(hop.scan) is None
