"""An array of zeros that the loops around an op carry: zero again at the end of each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


def enclosing_scans(op: Op) -> list[Scan]:
    """The scans that an op is in, from the inside out, as long as there is nothing in between."""
    found: list[Scan] = []
    while isinstance(op.parent, Scan):
        op = op.parent
        found.append(op)
    return found


def carried_zeros(aval: Any, loops: Sequence[Scan], rw: Rewriter) -> Value:
    """Zeros made before the outermost loop and carried by all, as they are in the innermost."""
    made = rw.insert(lambda: jnp.zeros(aval.shape, aval.dtype), before=loops[-1])
    for loop in reversed(loops):
        made = rw.carry(loop, made, "scratch").param
    return made


def hand_on(start: Value, end: Value, loops: Sequence[Scan], rw: Rewriter) -> None:
    """Make each loop hand `end` to its next step, from the inside out; it came in as `start`."""
    for loop in loops:
        carries = [c._replace(next=end) if c.param is start else c for c in loop.carries]
        ((start, end),) = [(c.init, c.result) for c in carries if c.next is end]
        rw.set_scan(loop, carries=carries)
