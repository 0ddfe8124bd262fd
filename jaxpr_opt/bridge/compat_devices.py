"""JAX's private facts about devices: which axes of a mesh are manual, whether XLA may divide arrays
over devices without a word in their types, which arguments' memory it may use, and what its
versions do otherwise.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import jaxlib.version
from jax._src import xla_bridge as _xla_bridge
from jax._src.lib.mlir import ir as _ir
from jax._src.sharding_impls import SPMDAxisContext as _SPMDAxisContext

_XLA: tuple[int, ...] = jaxlib.version.__version_info__

KEEPS_BARRIERS: bool = _XLA >= (0, 11)
"""Whether XLA keeps an `optimization_barrier` until it has placed its copies."""

SAYS_WHAT_IS_MAIN: bool = _XLA < (0, 11)
"""Whether it is known of a function, while it is lowered, that it is a program's entry."""

ADDS_AT_CONSTANTS: bool = _XLA >= (0, 12)
"""Whether XLA:CPU adds to a window at a constant place in place, in a loop that is one function."""

COMPILES_LOOPS_WHOLE: bool = _XLA >= (0, 12)
"""Whether XLA:CPU makes one function of a loop that touches more than 1024 bytes in each step,
too."""

SELECTS_VALUES: bool = _XLA >= (0, 12)
"""Whether XLA:CPU selects the greatest numbers, and does not sort, where no places are read."""

LARGEST_CONSTANT: int = 4096
"""Bytes of the largest constant that may be in a loop which XLA:CPU compiles as one function: it
ends the process from 10,000 on."""

MULTIPLIES_BFLOAT16: bool = _XLA >= (0, 12)
"""Whether XLA:CPU has products of `bfloat16` that round as they go."""


def manual_axes(ctx: Any) -> dict[str, bool]:
    """The axes of the mesh in an equation's context that have more than one device, and whether
    each is manual: its devices run the equation each for itself.
    """
    mesh = None if ctx is None else ctx.cur_abstract_mesh
    if mesh is None or mesh.empty:
        return {}
    return {name: name in mesh.manual_axes for name, size in mesh.shape.items() if size > 1}


def may_be_divided() -> bool:
    """Whether XLA may divide arrays of what is traced now over devices, without a word in their
    types.  A mesh in the context says so; without one, it may where there are several devices.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        return _has_auto_axes(mesh)
    started = _xla_bridge.backends_are_initialized()
    return started and any(b.device_count() > 1 for b in _xla_bridge.backends().values())


def are_divided(ctx: Any) -> bool:
    """Whether XLA may divide arrays of what is lowered in this context; see `may_be_divided`."""
    around, mesh = ctx.module_context.axis_context, ctx.jaxpr_eqn_ctx.cur_abstract_mesh
    several = getattr(around, "num_devices", 0) > 1
    if isinstance(around, _SPMDAxisContext):
        several = any(n > 1 for a, n in around.mesh.shape.items() if a not in around.manual_axes)
    return several and (mesh.empty or _has_auto_axes(mesh))


def is_one_cpu(ctx: Any) -> bool:
    """Whether what is lowered in this context is for one CPU device, and nothing else."""
    platforms = ctx.platforms or ctx.module_context.platforms
    devices = getattr(ctx.module_context.axis_context, "num_devices", 0)
    return tuple(platforms) == ("cpu",) and devices == 1


def is_exported(ctx: Any) -> bool:
    """Whether what is lowered in this context is for `jax.export`, not to be run here."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def donated(args: Sequence[Any]) -> frozenset[int]:
    """Which operands of what is lowered are arguments that the caller of the program donates."""
    return frozenset(i for i, each in enumerate(args) if _is_donated(each))


def _is_donated(operand: Any) -> bool:
    if not isinstance(operand, _ir.BlockArgument):
        return False
    around = operand.owner.owner.attributes
    if "arg_attrs" not in around:
        return False
    words = _ir.DictAttr(_ir.ArrayAttr(around["arg_attrs"])[operand.arg_number])
    return any(word in words for word in ("tf.aliasing_output", "jax.buffer_donor"))


def _has_auto_axes(mesh: Any) -> bool:
    return any(mesh.shape[axis] > 1 for axis in mesh.auto_axes)


def started_backend() -> str | None:
    """The name of JAX's default backend; None as long as nothing has started one."""
    return jax.default_backend() if _xla_bridge.backends_are_initialized() else None


@functools.cache
def takes_option(name: str, value: Any) -> bool:
    """Whether XLA knows an option of a program, and nobody has set it in ``XLA_FLAGS``."""
    if name in os.environ.get("XLA_FLAGS", ""):
        return False
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
