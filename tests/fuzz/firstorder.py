"""First-order primitives in NumPy; a sum is taken in the order of its elements, whatever their
layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fuzz import windows
from fuzz.elementwise import PLAIN, WITH_PARAMS
from jaxpr_opt.bridge import compat_types
from jaxpr_opt.ir import exporter
from jaxpr_opt.ir.graph import UNDEFINED, Op, Region
from jaxpr_opt.testing.exact import by_itself

Array = Any
Run = Callable[..., list[Any]]
GARBAGE, OTHER_GARBAGE = 7, 0
"""What unspecified arrays hold; of a program that may look at them, both give the same."""


def compiled(op: Op, garbage: int = GARBAGE) -> Run:
    """The function of an op's operands that computes its results."""
    if not all(isinstance(v.dtype, np.dtype) for v in (*op.operands, *op.results)):
        return _by_jax(op)  # keys of random numbers
    if op.name in PLAIN:
        return _elementwise(op)
    if op.name in WITH_PARAMS:
        fun = WITH_PARAMS[op.name]
        return lambda x: [np.asarray(fun(x, op))]
    if op.name == UNDEFINED:
        value = _garbage(op.result.aval, garbage)
        return lambda: [value]
    if op.name in RULES and (op.name != "gather" or op.params["mode"].name != "ONE_HOT"):
        rule = RULES[op.name]
        return lambda *xs: [np.asarray(rule(op, *xs))]
    if op.name in SEVERAL:
        several = SEVERAL[op.name]
        return lambda *xs: several(op, *xs)
    return _by_jax(op)


def _elementwise(op: Op) -> Run:
    fun, dtype = PLAIN[op.name], op.result.dtype

    def run(*xs: Array) -> list[Any]:
        made = np.asarray(fun(*xs))
        return [made if made.dtype == dtype else made.astype(dtype)]

    return run


def _garbage(aval: Any, garbage: int) -> Any:
    if not isinstance(aval.dtype, np.dtype) or aval.dtype == jax.dtypes.float0:
        return compat_types.undefined(aval)
    return np.full(aval.shape, garbage, aval.dtype)


def _by_jax(op: Op) -> Run:
    """As JAX evaluates the op by itself."""
    region: list[Region] = []

    def run(*xs: Array) -> list[Any]:
        region[:] = region or [by_itself(op)]
        made = exporter.evaluate(region[0], [_given(x) for x in xs], {})
        return [_taken(x) for x in made]

    return run


def _given(x: Any) -> Any:
    plain = isinstance(x, np.ndarray | np.generic) and x.dtype != jax.dtypes.float0
    return jax.numpy.asarray(x) if plain else x


def _taken(x: Any) -> Any:
    return np.asarray(x) if isinstance(x.dtype, np.dtype) else x


# -- shapes -----------------------------------------------------------------------------------


def _broadcast(op: Op, x: Array) -> Array:
    shape, dims = op.params["shape"], op.params["broadcast_dimensions"]
    spread = [1] * len(shape)
    for d, n in zip(dims, x.shape, strict=True):
        spread[d] = n
    return np.broadcast_to(x.reshape(spread), shape)


def _slice(op: Op, x: Array) -> Array:
    params = op.params
    strides = params["strides"] or (1,) * x.ndim
    box = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*each) for each in box)]


def _pad(op: Op, x: Array, value: Array) -> Array:
    made = np.full(
        [lo + n + hi + max(n - 1, 0) * gap
         for n, (lo, hi, gap) in zip(x.shape, op.params["padding_config"], strict=True)]
        if all(lo >= 0 and hi >= 0 for lo, hi, _ in op.params["padding_config"]) else [], value,
    )  # fmt: skip
    if made.ndim != x.ndim:
        return _by_jax(op)(x, value)[0]
    config = op.params["padding_config"]
    box = tuple(
        slice(lo, lo + n + max(n - 1, 0) * gap, gap + 1)
        for n, (lo, _, gap) in zip(x.shape, config, strict=True)
    )
    made[box] = x
    return made


def _iota(op: Op) -> Array:
    shape, d = op.params["shape"], op.params["dimension"]
    line = np.arange(shape[d]).astype(op.params["dtype"])
    return np.broadcast_to(line.reshape([-1 if k == d else 1 for k in range(len(shape))]), shape)


def _concatenate(op: Op, *xs: Array) -> Array:
    return np.concatenate(xs, op.params["dimension"])


def _split(op: Op, x: Array) -> list[Any]:
    at = np.cumsum(op.params["sizes"])[:-1]
    return list(np.split(x, at, op.params["axis"]))


# -- sums -------------------------------------------------------------------------------------


def _reduced(fun: Callable[[Array, Array], Array], start: Callable[[Any], Any]) -> Any:
    def reduce(op: Op, x: Array) -> Array:
        axes = sorted(op.params["axes"])
        rest = [d for d in range(x.ndim) if d not in axes]
        shape = [x.shape[d] for d in rest]
        count = math.prod(x.shape[d] for d in axes)
        rows = x.transpose(*axes, *rest).reshape(count, *shape)
        total = np.full(shape, start(x.dtype), x.dtype)
        for row in rows:
            total = fun(total, row)
        return total

    return reduce


def _lowest(dtype: Any) -> Any:
    if dtype == np.bool_:
        return False
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _highest(dtype: Any) -> Any:
    if dtype == np.bool_:
        return True
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def _zero(_: Any) -> int:
    return 0


def _one(_: Any) -> int:
    return 1


def _all_ones(dtype: Any) -> Any:
    return True if dtype == np.bool_ else -1


def _dot_general(op: Op, x: Array, y: Array) -> Array:
    (cx, cy), (bx, by) = op.params["dimension_numbers"]
    fx = [d for d in range(x.ndim) if d not in (*cx, *bx)]
    fy = [d for d in range(y.ndim) if d not in (*cy, *by)]
    batch = [x.shape[d] for d in bx]
    m, n = [x.shape[d] for d in fx], [y.shape[d] for d in fy]
    k = math.prod(x.shape[d] for d in cx)
    dtype = op.result.dtype
    a = x.transpose(*cx, *bx, *fx).reshape(k, *batch, math.prod(m), 1).astype(dtype)
    b = y.transpose(*cy, *by, *fy).reshape(k, *batch, 1, math.prod(n)).astype(dtype)
    total = np.zeros((*batch, math.prod(m), math.prod(n)), dtype)
    for i in range(k):
        total = total + a[i] * b[i]
    return total.reshape((*batch, *m, *n))


def _cumulated(fun: Any) -> Any:
    def cumulate(op: Op, x: Array) -> Array:
        axis, back = op.params["axis"], op.params["reverse"]
        x = np.flip(x, axis) if back else x
        made = fun.accumulate(x, axis, dtype=x.dtype)
        return np.flip(made, axis) if back else made

    return cumulate


def _arg(fun: Any) -> Any:
    def arg(op: Op, x: Array) -> Array:
        (axis,) = op.params["axes"]
        return fun(x, axis).astype(op.params["index_dtype"])

    return arg


RULES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": lambda op, x: x.reshape(op.params["new_sizes"]),
    "squeeze": lambda op, x: x.reshape(op.result.shape),
    "expand_dims": lambda op, x: x.reshape(op.result.shape),
    "transpose": lambda op, x: x.transpose(op.params["permutation"]),
    "rev": lambda op, x: np.flip(x, op.params["dimensions"]),
    "slice": _slice,
    "pad": _pad,
    "iota": _iota,
    "concatenate": _concatenate,
    "dynamic_slice": windows.dynamic_slice,
    "dynamic_update_slice": windows.dynamic_update_slice,
    "gather": windows.gather,
    "dot_general": _dot_general,
    "reduce_sum": _reduced(np.add, _zero),
    "reduce_prod": _reduced(np.multiply, _one),
    "reduce_max": _reduced(np.maximum, _lowest),
    "reduce_min": _reduced(np.minimum, _highest),
    "reduce_and": _reduced(PLAIN["and"], _all_ones),
    "reduce_or": _reduced(PLAIN["or"], _zero),
    "cumprod": _cumulated(np.multiply),
    "cummax": _cumulated(np.maximum),
    "cummin": _cumulated(np.minimum),
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
    **dict.fromkeys(windows.COMBINERS, windows.scatter),
}

SEVERAL: dict[str, Callable[..., list[Any]]] = {
    "optimization_barrier": lambda _, *xs: list(xs),
    "split": _split,
}
