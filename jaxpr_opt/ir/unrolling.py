"""How many steps of a loop run as one."""

from __future__ import annotations

from jaxpr_opt.bridge.parameters import unroll_of
from jaxpr_opt.ir.graph import Scan
from jaxpr_opt.ir.traits import IN_PLACE


def steps_as_one(scan: Scan) -> int:
    """As many as the user asked for; fewer, if those do not divide all: to split off what is left,
    JAX copies the rows of streams and stacks.  One, if steps write to arrays in place: XLA copies
    what a step writes and the next one reads.  All, if the user asked for all.
    """
    asked = unroll_of(scan)
    if asked == 1 or not scan.has_length:
        return int(asked)
    length = scan.length
    if not 0 < asked < length:
        return length
    writes = any(op.name in IN_PLACE for op in scan.body.walk())
    return 1 if writes else max(k for k in range(1, asked + 1) if length % k == 0)
