"""Facts about the devices that a program runs on, and about the XLA that compiles for them.

In a `shard_map` each device of a manual axis decides for itself which branch it takes and how many
steps of a loop it runs. If an axis of the mesh is not manual, XLA partitions the body along that
axis and inserts collectives that the program does not show.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.bridge.parameters import checks_vma, mesh_of, newly_manual_axes_of
from jaxpr_opt.ir.graph import Call, Op, Value
from jaxpr_opt.ir.nesting import enclosing_shard_map, program_of

Fence = Literal["barrier", "division"]
"""See `jaxpr_opt.builders.fences`."""


def is_manual(op: Op) -> bool:
    """Whether several devices run the op, each for itself."""
    return any(_axes(op).values())


def is_partly_manual(op: Op) -> bool:
    """Whether several devices run the op, each for itself, and XLA may insert collectives, as it
    partitions the op along other axes of the mesh.
    """
    return len(set(_axes(op).values())) == 2


def is_divided(op: Op) -> bool:
    """Whether XLA may divide arrays around the op over devices without saying so in their types."""
    axes, program = _axes(op), program_of(op)
    if axes and all(axes.values()):
        return False  # what is not in a type is not divided: each device has arrays of its own
    return is_partly_manual(op) or (program is not None and program.divided)


def is_sharded(value: Value) -> bool:
    """Whether the type says which device holds which part, so that a window may be on several, or
    that each holds an addend (`unreduced`), as the cotangent of what is `reduced` does.
    """
    spec = getattr(getattr(value.aval, "sharding", None), "spec", None)
    return spec is not None and bool(
        spec.unreduced or spec.reduced or any(axis is not None for axis in spec.partitions)
    )


def has_divided_rows(value: Value, op: Op) -> bool:
    """Whether elements of a value that `op` reads may be on several devices, so that testing all of
    them needs communication.
    """
    return value.shape != () and (is_divided(op) or is_sharded(value))


def _axes(op: Op) -> dict[str, bool]:
    around = enclosing_shard_map(op)
    axes = compat_devices.manual_axes(op.source.ctx)
    if around is not None:
        manual = newly_manual_axes_of(around)
        shape = mesh_of(around).shape
        axes = {a: axes.get(a, False) or a in manual for a, n in shape.items() if n > 1}
    return axes


def is_replicated(value: Value, op: Op) -> bool:
    """Whether a value read by `op` is known to be the same on every device of the manual axes.

    JAX tracks in types over which axes a value varies, unless told not to (`check_vma=False`) in a
    `shard_map` around it.
    """
    varying = getattr(getattr(value.aval, "manual_axis_type", None), "varying", None)
    around = enclosing_shard_map(op)
    return varying is not None and not varying and around is not None and _is_checked(around)


def _is_checked(shard_map: Call) -> bool:
    """Whether a `shard_map`, and those around it, track over which axes values vary."""
    around = enclosing_shard_map(shard_map)
    outside = not is_manual(shard_map) if around is None else _is_checked(around)
    return checks_vma(shard_map) and outside


def fence() -> Fence | None:
    """How XLA is kept from moving a read past a write until it has placed its copies: a barrier, a
    division, or not at all (None).

    Since JAX 0.11 a barrier does.  Before, XLA dropped barriers too early.  On a CPU a division
    does, too: XLA:CPU does not compute it again in each of its readers, as other devices may.
    """
    if compat_devices.KEEPS_BARRIERS:
        return "barrier"
    return "division" if jax.default_backend() == "cpu" else None


def is_quick_if_small() -> bool:
    """Whether XLA runs a loop over small arrays faster than it starts a few ops: before JAX 0.11 it
    compiled such a loop as one function on a CPU.
    """
    return _is_cpu_before_barriers()


def ignores_checkpoints() -> bool:
    """Whether XLA computes nothing again for a checkpoint beside what it was computed by first:
    before JAX 0.11 on a CPU it drops barriers before it merges equal ops.
    """
    return _is_cpu_before_barriers()


def copies_for_branches() -> bool:
    """Whether XLA copies an array that branches of a step write to, but for the last of two: before
    JAX 0.11 on a CPU.
    """
    return _is_cpu_before_barriers()


def converts_as_written(array: Value) -> bool:
    """Whether XLA converts all of an array to float32 and back where a part of it is written: one
    of bfloat16, before JAX 0.11 on a CPU.
    """
    return _is_cpu_before_barriers() and array.dtype == jnp.bfloat16


def _is_cpu_before_barriers() -> bool:
    """Whether programs run on a CPU, by a JAX before 0.11."""
    return not compat_devices.KEEPS_BARRIERS and jax.default_backend() == "cpu"


def writes_in_order() -> bool:
    """Whether a scatter writes its rows in order, so that the last row for a place stays there."""
    return jax.default_backend() == "cpu"


def goes_through_at_constants(in_one_function: bool) -> bool:
    """Whether XLA goes through all of an array of which a window at a constant place is read, added
    to and written.

    XLA makes a `slice` of such a read, and fuses it into the write; on a CPU such a fusion writes
    all elements. From JAX 0.12 on it writes the window only, in a loop that is one function.
    """
    adds = compat_devices.ADDS_AT_CONSTANTS and in_one_function
    return not adds and jax.default_backend() == "cpu"
