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
    avals: Sequence[Any], seed: int = 0, *, special: Sequence[float] = (), places: bool = False
) -> list[Any]:
    """One array of each type: normal floats, integers from 0 to 3.

    Args:
      avals: the types.
      seed: of the generator.
      special: about a third of all floats, and one in each array at least, are taken from these.
      places: draw integers as indices that a program must expect: from -n-1 to n+1, where n is a
        size of an axis of one of the types, and sometimes the least or the largest integer of the
        type.

    Example:
      >>> [x.shape for x in random_inputs([jax.ShapeDtypeStruct((2, 3), "float32")])]
      [(2, 3)]
    """
    rng = np.random.default_rng(seed)
    sizes = sorted({3, *(n for aval in avals for n in aval.shape)}) if places else []
    return [_random(aval, rng, special, sizes) for aval in avals]


def _random(
    aval: Any, rng: np.random.Generator, special: Sequence[float], sizes: Sequence[int]
) -> Any:
    shape, dtype = aval.shape, aval.dtype
    if not isinstance(dtype, np.dtype):  # PRNG keys
        keys = [jax.random.key(int(rng.integers(1000))) for _ in range(int(np.prod(shape)))]
        return jnp.stack(keys).reshape(shape)
    if dtype == jax.dtypes.float0:
        return np.zeros(shape, dtype)
    if dtype == np.bool_:
        return jnp.asarray(rng.integers(2, size=shape), dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        small = rng.integers(4, size=shape)
        return jnp.asarray(_places(small, dtype, rng, sizes) if sizes else small, dtype)
    values = np.asarray(rng.standard_normal(shape))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * rng.standard_normal(shape)
    if len(special) and values.size:
        chosen = np.asarray(rng.random(shape) < 1 / 3)
        chosen.flat[rng.integers(values.size)] = True
        values = np.where(chosen, rng.choice(special, size=shape), values)
    return jnp.asarray(values, dtype)


def _places(small: Any, dtype: Any, rng: np.random.Generator, sizes: Sequence[int]) -> Any:
    """Indices in and out of axes of these sizes; about one in ten is a limit of the type."""
    bound = rng.choice(sizes, size=small.shape) + 1
    info: Any = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]
    limits = int(info.min), int(info.max)
    drawn = np.clip(rng.integers(-bound, bound + 1), *limits).astype(dtype)
    extreme = np.asarray(limits, dtype)
    return np.where(rng.random(small.shape) < 0.1, rng.choice(extreme, size=small.shape), drawn)
