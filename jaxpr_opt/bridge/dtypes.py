"""Facts about dtypes: one place for all passes and analyses.

NumPy knows the dtypes it came with. For `int4`, `bfloat16` and the float8s, which JAX adds, it says
neither that they are numbers nor how large they may be; a float8 may lack infinities, or a zero.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def type_text(aval: Any) -> str:
    """A type as in JAX's own jaxprs, `f32[8,3]`; weak types are not told apart."""
    return str(aval.str_short(short_dtypes=True)) if hasattr(aval, "str_short") else str(aval)


def array_text(array: Any) -> str:
    """The type of what has a shape and a dtype, as `f32[8,3]`."""
    return type_text(jax.core.ShapedArray(array.shape, array.dtype))


def is_on_host(value: Any) -> bool:
    """Whether a captured value is a number or an array that Python holds, not a device."""
    if isinstance(value, int | float | complex):
        return True
    return hasattr(value, "__array__") and not isinstance(value, jax.Array)  # nor a tracer


def is_array(dtype: Any) -> bool:
    """Whether elements are numbers or truth values, not keys of random numbers or `float0`."""
    return isinstance(dtype, np.dtype) and dtype != jax.dtypes.float0


def is_of_bytes(dtype: Any) -> bool:
    """Whether elements are numbers or truth values of whole bytes.  XLA packs smaller ones, and
    may abort where it should concatenate them (jax 0.10).
    """
    return is_array(dtype) and bits(dtype) >= 8


def is_integer(dtype: Any) -> bool:
    """Whether elements are integers of whole bytes: NumPy and XLA compute with these alike."""
    return isinstance(dtype, np.dtype) and dtype.kind in "iu"


def is_integral(dtype: Any) -> bool:
    """Whether elements are integers of whole bytes, or truth values."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biu"


def is_float(dtype: Any) -> bool:
    """Whether elements are floats of the kinds that NumPy knows, of 16 bits or more."""
    return isinstance(dtype, np.dtype) and np.issubdtype(dtype, np.floating)


def is_real(dtype: Any) -> bool:
    """Whether elements are numbers with one part."""
    return bool(jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer))


def is_inexact(dtype: Any) -> bool:
    """Whether elements are real or complex numbers that are rounded."""
    return bool(jnp.issubdtype(dtype, jnp.inexact))


@functools.cache
def precision(dtype: Any) -> int:
    """How many bits of the fraction of its numbers a dtype holds."""
    return int(jnp.finfo(dtype).nmant)  # type: ignore[no-untyped-call]


@functools.cache
def most(dtype: Any) -> float:
    """The greatest finite number of a dtype of floats."""
    return float(jnp.finfo(dtype).max)  # type: ignore[no-untyped-call]


def has_common_range(dtype: Any) -> bool:
    """Whether numbers may be as large as those of float32, if they have an exponent."""
    return not is_inexact(dtype) or exponent(dtype) >= exponent(np.float32)


def is_half(dtype: Any) -> bool:
    """Whether numbers are rounded, and to fewer bits than those of float32."""
    return is_inexact(dtype) and precision(dtype) < precision(np.float32)


def is_widened(dtype: Any, other: Any) -> bool:
    """Whether all numbers of a dtype of real floats are such of another one, exactly."""
    if not (jnp.issubdtype(dtype, jnp.floating) and jnp.issubdtype(other, jnp.floating)):
        return False
    return precision(dtype) <= precision(other) and exponent(dtype) <= exponent(other)


@functools.cache
def exponent(dtype: Any) -> int:
    """The exponent of two that is too large for a dtype of floats."""
    return int(jnp.finfo(dtype).maxexp)  # type: ignore[no-untyped-call]


@functools.cache
def least(dtype: Any) -> float:
    """The least positive number of a dtype of floats that is not flushed to zero."""
    return float(jnp.finfo(dtype).tiny)  # type: ignore[no-untyped-call]


@functools.cache
def limits(dtype: Any) -> tuple[int, int]:
    """The least and the greatest integer of a dtype of integers, of any width."""
    info = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(info.min), int(info.max)


def holds(dtype: Any, number: int) -> bool:
    """Whether an integer is one of a dtype of integers."""
    least, most = limits(dtype)
    return least <= number <= most


def converted(numbers: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Numbers in another dtype.  XLA says nothing of those that it cannot hold, nor of what is not
    real.
    """
    given = np.asarray(numbers)
    if np.iscomplexobj(given) and not jnp.issubdtype(dtype, jnp.complexfloating):
        given = given.real
    with np.errstate(all="ignore"):
        return given.astype(dtype)


def wrapped(dtype: Any, number: int) -> Any:
    """An integer as a scalar of a dtype of integers, wrapped around as XLA computes with it."""
    least, most = limits(dtype)
    return np.dtype(dtype).type((number - least) % (most - least + 1) + least)


@functools.cache
def extremes(dtype: Any) -> tuple[Any, Any] | None:
    """The least and the greatest element of a dtype; None if it has no order."""
    if dtype == np.bool_:
        return False, True
    if jnp.issubdtype(dtype, jnp.integer):
        return limits(dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
        return None
    info = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
    if np.isinf(np.asarray(np.inf).astype(dtype)):
        return -np.inf, np.inf
    return info.min, info.max


@functools.cache
def has_zero(dtype: Any) -> bool:
    """Whether one of the elements is zero: not so where a float is an exponent and nothing else."""
    return is_array(dtype) and bool(np.asarray(0).astype(dtype) == 0)


def neutral(dtype: Any, combine: str) -> Any:
    """The element `e` with ``combine(x, e) = x`` for all `x`, where `combine` is one of `add`,
    `mul`, `min` and `max`, or of whole numbers and truth values also `and`, `or` and `xor`; None if
    there is none.

    The complex 1 is 1 + 0i, and 0 * inf is NaN.  Where zero is no element, XLA makes NaN of the
    least: it computes with it as with a float32, which is flushed to zero.
    """
    if not has_zero(dtype):
        return None
    if combine in {"add", "or", "xor"}:
        return 0
    if combine == "and":
        return np.invert(np.zeros((), dtype)).item()
    if combine == "mul":
        return 1 if is_real(dtype) else None
    found = extremes(dtype)
    return None if found is None else found[combine == "min"]


def nbytes(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of an array: XLA packs numbers of less than one byte."""
    return -(-math.prod(shape) * bits(dtype) // 8)


@functools.cache
def bits(dtype: Any) -> int:
    """How many bits an element takes in an array; 32 if nobody says."""
    of_bytes = 8 * int(getattr(dtype, "itemsize", 4))
    if of_bytes > 8 or not is_array(dtype) or dtype == np.bool_:
        return of_bytes
    info = jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo
    return int(info(dtype).bits)
