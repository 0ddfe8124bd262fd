"""`jax.jit` of an optimised function.

JAX takes options of XLA for whole programs only.  So those that a device is faster with hold for a
function that is called, or lowered, outside of other programs, and not for one in a user's
`jax.jit`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from jaxpr_opt.bridge import compat_call, compat_devices
from jaxpr_opt.cost.model import cost_model


def jit(fun: Callable[..., Any], **options: Any) -> Any:
    """The function as `jax.jit` compiles it; options of XLA that are given go before those of the
    device.

    In another program it is inlined: XLA copies what nested functions hand on, and what is constant
    around them is not known in them.
    """
    options = {"inline": True} | options
    inside = jax.jit(fun, **options)

    @functools.cache
    def outside() -> Any:
        own = compiler_options()
        if not own:
            return inside
        given = options.get("compiler_options") or {}
        return jax.jit(fun, **{**options, "compiler_options": own | given})

    return compat_call.with_other_outside(inside, outside)


def compiler_options() -> dict[str, Any]:
    """The options of the device that XLA knows, unless ``XLA_FLAGS`` names them."""
    wanted = cost_model().device.options
    return {name: x for name, x in wanted if compat_devices.takes_option(name, x)}
