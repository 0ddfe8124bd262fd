"""Arguments to try a program on: random ones, and those with the values where rewrites go wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_TYPE = re.compile(r"(?P<dtype>[a-z]+[a-z0-9]*)\[(?P<shape>[0-9, ]*)\]")
_SHORT = {"f": "float", "i": "int", "u": "uint", "bf": "bfloat", "c": "complex"}


def parse_type(text: str) -> jax.ShapeDtypeStruct:
    """The type that is written `f32[8,3]`, `bf16[]`, `bool[2]` or `float32[8,3]`.

    Raises:
      ValueError: `text` is not a type.
    """
    found = _TYPE.fullmatch(text.strip())
    if found is not None:
        short, bits = re.fullmatch(r"([a-z]+)(\d*)", found["dtype"]).groups()  # type: ignore[union-attr]
        name = f"{_SHORT.get(short, short)}{bits}" if bits else short
        shape = tuple(int(n) for n in found["shape"].split(",") if n.strip())
        try:
            return jax.ShapeDtypeStruct(shape, jnp.dtype(name))
        except TypeError:
            pass
    raise ValueError(f"not a type: {text!r}; write it like f32[8,128], i32[] or bool[4]")


EDGES = (math.inf, -math.inf, 0.0, -0.0)
"""Floats at which rewrites go wrong, beside NaN, which is best tried alone: it swallows others."""


def random_inputs(
    avals: Sequence[Any], seed: int = 0, *, special: Sequence[float] = ()
) -> list[Any]:
    """One array of each type: normal floats, small integers that are not negative.

    About a third of all floats, and one in each array at least, are taken from `special`.

    Example:
      >>> [x.shape for x in random_inputs([jax.ShapeDtypeStruct((2, 3), "float32")])]
      [(2, 3)]
    """
    rng = np.random.default_rng(seed)
    return [_random(aval, rng, special) for aval in avals]


def _random(aval: Any, rng: np.random.Generator, special: Sequence[float]) -> Any:
    shape, dtype = aval.shape, aval.dtype
    if not isinstance(dtype, np.dtype):  # PRNG keys
        keys = [jax.random.key(int(rng.integers(1000))) for _ in range(int(np.prod(shape)))]
        return jnp.stack(keys).reshape(shape)
    if dtype == jax.dtypes.float0:
        return np.zeros(shape, dtype)
    if dtype == np.bool_:
        return jnp.asarray(rng.integers(2, size=shape), dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(rng.integers(4, size=shape), dtype)
    values = np.asarray(rng.standard_normal(shape))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * rng.standard_normal(shape)
    if len(special) and values.size:
        chosen = np.asarray(rng.random(shape) < 1 / 3)
        chosen.flat[rng.integers(values.size)] = True
        values = np.where(chosen, rng.choice(special, size=shape), values)
    return jnp.asarray(values, dtype)
