"""Arguments of a call, kept on the host, so that the call can be repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxpr_opt.bridge import compat

MOST = 2**30
"""Bytes that are kept of one call."""


class Kept:
    """Copies of the arguments of one call."""

    def __init__(self, made: Sequence[Callable[[], Any]]) -> None:
        self._made = made

    def arrays(self) -> list[Any]:
        """The arguments, as new arrays: they may be donated."""
        return jax.block_until_ready([make() for make in self._made])  # type: ignore[no-any-return]


def kept(args: Sequence[Any], jaxpr: Any) -> Kept | None:
    """Copies of the arguments; None if they are too large, elsewhere, or not those of `jaxpr`."""
    avals = jaxpr.in_avals
    if len(args) != len(avals) or any(isinstance(each, jax.core.Tracer) for each in args):
        return None
    fitting = all(
        np.shape(x) == getattr(a, "shape", None) for x, a in zip(args, avals, strict=True)
    )
    if not fitting or sum(getattr(x, "nbytes", 0) for x in args) > MOST:
        return None
    if not all(x.is_fully_addressable for x in args if isinstance(x, jax.Array)):
        return None
    return Kept(list(map(_copied, args)))


def _copied(x: Any) -> Callable[[], Any]:
    if not isinstance(x, jax.Array):
        value = np.array(x) if isinstance(x, np.ndarray) else x
        return lambda: value
    sharding = x.sharding if compat.is_committed(x) else None
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        impl, data = jax.random.key_impl(x), np.array(jax.random.key_data(x))
        return lambda: jax.random.wrap_key_data(jax.numpy.array(data), impl=impl)
    copy = np.array(x)
    return lambda: jax.device_put(copy.copy(), sharding)  # of its own: it may be donated
