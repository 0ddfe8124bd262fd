"""A program and its arguments, and what the programs' arguments are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Numbers = np.ndarray[Any, Any]


class Entry(NamedTuple):
    """A function, and its arguments; its gradient is taken with respect to the first."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    differentiated: bool = True
    """Whether its gradient is looked at, too."""


def entry(function: Callable[..., Any], *arguments: Any) -> Entry:
    """A program whose gradient is looked at, too."""
    return Entry(function, arguments)


def forward(function: Callable[..., Any], *arguments: Any) -> Entry:
    """A program without a gradient."""
    return Entry(function, arguments, differentiated=False)


def normal(*shape: int, seed: int = 0) -> Numbers:
    """Numbers that are drawn anew for each seed."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def below(n: int, *shape: int, seed: int = 0) -> Numbers:
    """Indices."""
    return np.random.default_rng(seed).integers(n, size=shape, dtype=np.int32)


def summed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The sum over the numbers of a result."""

    def loss(*args: Any) -> Any:
        leaves = map(jnp.asarray, jax.tree.leaves(function(*args)))
        return sum(jnp.sum(jnp.sin(x)) for x in leaves if jnp.issubdtype(x.dtype, jnp.floating))

    return loss
