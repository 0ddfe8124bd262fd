"""What is known of the devices that a program runs on, and of the XLA that compiles for them."""

from __future__ import annotations

from jaxpr_opt import compat
from jaxpr_opt.ir import Op, Value, enclosing_shard_map


def agreed(value: Value, op: Op) -> bool:
    """Whether a value read by `op` is known to be the same on every device of the mesh around it.

    JAX tracks in types over which axes a value varies, unless told not to (`check_vma=False`).
    """
    around = enclosing_shard_map(op)
    if around is None or not around.params["check_vma"]:
        return False
    varying = getattr(getattr(value.aval, "manual_axis_type", None), "varying", None)
    return varying is not None and not varying


def keep_barriers() -> bool:
    """Whether XLA still keeps what a barrier orders in order when it places copies."""
    return compat.KEEPS_BARRIERS
