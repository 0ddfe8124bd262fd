"""What all devices of a `shard_map` agree on."""

from __future__ import annotations

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
