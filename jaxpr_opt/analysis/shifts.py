"""Stacks that hold the same rows, one place apart.

What a carry is at the end of a step is what it is at the start of the next.  If a loop stacks it at
the start, a loop that runs the other way reads it, at step `i`, one step after it would have read
the one at the end: it can carry the row from step to step, and begins with the carry's last value.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxpr_opt.analysis.facts import remembered
from jaxpr_opt.analysis.routes import Route, Rows, routes
from jaxpr_opt.analysis.skips import find_skip
from jaxpr_opt.ir import Carry, Scan, Stack, Value


@remembered
def shifted(scan: Scan) -> Mapping[Value, tuple[Carry, Stack]]:
    """Values at the end of a step that are stacked at the start of the next: each with its carry
    and that stack.
    """
    stacks = {stack.value: stack for stack in scan.stacks if stack.result.uses}
    return {c.next: (c, stacks[c.param]) for c in scan.carries if c.param in stacks}


def readers_back(scan: Scan, stacked: Value) -> tuple[tuple[Scan, Value], ...] | str:
    """The loops that read what `scan` stacks row by row, from its last step to its first, each
    with the row; or why there are others.
    """
    found = routes(stacked)
    if found is None:
        return f"{stacked.label} is needed whole"
    if find_skip(scan) is not None:
        return "steps are skipped"
    if not all(_runs_back(scan, route) for route, _ in found):
        return f"{stacked.label} is read in another order than from the last step to the first"
    return tuple((hop.scan, row) for (hop,), row in found if isinstance(hop, Rows))


def _runs_back(scan: Scan, route: Route) -> bool:
    """Whether the way to a row is one loop that takes all steps, in the opposite order."""
    hop = route[0]
    if len(route) > 1 or not isinstance(hop, Rows):
        return False
    return hop.scan.reverse != scan.reverse and find_skip(hop.scan) is None
