"""What is known of the devices that a program runs on, and of the XLA that compiles for them."""

from __future__ import annotations

from typing import Literal

import jax

from jaxpr_opt import compat
from jaxpr_opt.ir import Op, Value, enclosing_shard_map

Fence = Literal["barrier", "division"]
"""See `jaxpr_opt.fences`."""


def agreed(value: Value, op: Op) -> bool:
    """Whether a value read by `op` is known to be the same on every device of the mesh around it.

    JAX tracks in types over which axes a value varies, unless told not to (`check_vma=False`).
    """
    around = enclosing_shard_map(op)
    if around is None or not around.params["check_vma"]:
        return False
    varying = getattr(getattr(value.aval, "manual_axis_type", None), "varying", None)
    return varying is not None and not varying


def fence() -> Fence | None:
    """What keeps XLA from moving a read past a write until it has placed its copies, if anything.

    Since JAX 0.11 a barrier does.  Before, XLA dropped barriers first; on a CPU it does not fuse
    divisions again and again, as other devices may.
    """
    if compat.KEEPS_BARRIERS:
        return "barrier"
    return "division" if jax.default_backend() == "cpu" else None


def compile_loops_whole() -> bool:
    """Whether XLA:CPU makes one function of a loop whose steps read rows of scalars."""
    return compat.COMPILES_LOOPS_WHOLE
