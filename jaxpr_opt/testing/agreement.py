"""When two results, or two functions, are the same: to the bit, or up to the rounding of fusion."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpr_opt.bridge.dtypes import array_text

Array = np.ndarray[Any, Any]

ROUNDING = 1000
"""Units in the last place that compiled programs may differ by, of the largest value there is."""


def assert_same_bits(first: Any, second: Any, what: str = "values") -> None:
    """Check that two pytrees hold the same bits, up to the sign of zero and the kind of NaN.

    Raises:
      AssertionError: they do not; the message has the largest error, and where it is.

    Example:
      >>> assert_same_bits({"x": jnp.zeros(2)}, {"x": -jnp.zeros(2)})
    """
    _compare(first, second, what, _same)


def assert_close(first: Any, second: Any, what: str = "values", rtol: float | None = None) -> None:
    """Check that two pytrees agree up to rounding, or up to `rtol`; integers exactly.

    Raises:
      AssertionError: they do not; the message has the largest error, and where it is.

    Example:
      >>> assert_close(jnp.float32(1), jnp.float32(1.0000001))
    """
    _compare(first, second, what, functools.partial(close, rtol=rtol))


def assert_same_derivatives(
    first: Callable[..., Any], second: Callable[..., Any], *args: Any, rtol: float | None = None
) -> None:
    """Check that vector-Jacobian and Jacobian-vector products agree, where `first` has them.

    What JAX cannot differentiate in `first` (the transpose of a `while`) is not asked of `second`.

    Raises:
      AssertionError: they do not; the message has the largest error, and where it is.

    Example:
      >>> assert_same_derivatives(jnp.sin, lambda x: -jnp.sin(-x), jnp.ones(3))
    """
    ours, theirs = _on_floats(first, args), _on_floats(second, args)
    leaves = [leaf for leaf in jax.tree.leaves(args) if _is_inexact(_dtype(leaf))]
    outputs = jax.eval_shape(ours, *leaves)
    if not leaves or not outputs:
        return
    rng = np.random.default_rng(0)
    tangents = [_direction(leaf, rng) for leaf in leaves]
    cotangents = [_direction(out, rng) for out in outputs]

    def forward(fun: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *xs: jax.jvp(fun, xs, tuple(tangents))

    def backward(fun: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *xs: jax.vjp(fun, *xs)[1](cotangents)

    for what, mode in (("forward derivatives", forward), ("gradients", backward)):
        try:
            wanted = jax.jit(mode(ours)).lower(*leaves)
        except (NotImplementedError, TypeError, ValueError):
            continue  # no such derivative, hence none to preserve
        assert_close(wanted.compile()(*leaves), jax.jit(mode(theirs))(*leaves), what, rtol)


def _on_floats(fun: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., list[Any]]:
    """`fun` from the floating point leaves of its arguments to those of its results."""
    leaves, tree = jax.tree.flatten(args)
    where = [index for index, leaf in enumerate(leaves) if _is_inexact(_dtype(leaf))]

    def on_floats(*floats: Any) -> list[Any]:
        full = list(leaves)
        for index, value in zip(where, floats, strict=True):
            full[index] = value
        outputs = jax.tree.leaves(fun(*jax.tree.unflatten(tree, full)))
        return [out for out in outputs if _is_inexact(_dtype(out))]

    return on_floats


def _direction(like: Any, rng: np.random.Generator) -> Any:
    return jnp.asarray(rng.standard_normal(jnp.shape(like)), _dtype(like))


def _dtype(value: Any) -> Any:
    return value.dtype if hasattr(value, "dtype") else jnp.result_type(value)


def _is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def _same(first: Array, second: Array) -> Array:
    if not _is_inexact(first.dtype):
        return np.asarray(first == second)
    a, b = _wide(first), _wide(second)  # which NumPy knows the NaN of, whatever their type
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def close(first: Array, second: Array, rtol: float | None = None) -> Array:
    """Which elements agree: by `rtol` of the largest there is, or up to rounding."""
    if not _is_inexact(first.dtype):
        return _same(first, second)
    eps = float(jnp.finfo(first.dtype).eps)  # type: ignore[no-untyped-call]
    tolerance = min(ROUNDING * eps, 0.1) if rtol is None else rtol
    a, b = _wide(first), _wide(second)
    options: Any = {"rtol": tolerance, "atol": tolerance * _scale(a), "equal_nan": True}
    agree: Array = np.isclose(a, b, **options)
    if np.iscomplexobj(a):  # one part may be infinite, and the other one rounded
        parts = (np.isclose(x, y, **options) for x, y in ((a.real, b.real), (a.imag, b.imag)))
        agree |= np.logical_and(*parts)
    return agree


def _scale(values: Array) -> float:
    return max(1.0, float(np.abs(values[np.isfinite(values)]).max(initial=0.0)))


def _wide(values: Array) -> Array:
    """Numbers that differences can be taken of."""
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)


def _worst(first: Array, second: Array, agree: Array) -> str:
    """The largest error among elements that do not agree, where it is, and how many there are."""
    a, b = _wide(first), _wide(second)
    with np.errstate(invalid="ignore"):
        error = np.where(agree, -1.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
    at = np.unravel_index(int(np.argmax(error)), error.shape)
    where = f" at {list(map(int, at))}" if at else ""
    share = f", {error[at] / _scale(a):.2g} of the largest value" if np.isfinite(error[at]) else ""
    count = f"; {np.sum(~agree)} of {agree.size} elements differ" if at else ""
    return (
        f"should be {first[at]} and is {second[at]}{where}:"
        f" the largest error, {error[at]:.2g}{share}{count}"
    )


def _compare(
    first: Any,
    second: Any,
    what: str,
    agree: Callable[[Array, Array], Array],
) -> None:
    tree, other = jax.tree.structure(first), jax.tree.structure(second)
    if str(tree) != str(other):
        raise AssertionError(f"{what} have another structure: {other}, not {tree}")
    pairs = zip(jax.tree.leaves_with_path(first), jax.tree.leaves(second), strict=True)
    for (path, ours), theirs in pairs:
        a, b = _array(ours), _array(theirs)
        where = f"{what}{jax.tree_util.keystr(path)}"
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            types = f"should be {array_text(a)} and is {array_text(b)}"
            raise AssertionError(f"{where} {types}")
        same = np.asarray(agree(a, b))
        if not same.all():
            raise AssertionError(f"{where} {_worst(a, b, same)}")


def _array(value: Any) -> Array:
    if not isinstance(_dtype(value), np.dtype):
        value = jax.random.key_data(value)
    return np.asarray(value)
