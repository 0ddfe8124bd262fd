"""An op again, or several, on other operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from jax import lax

from jaxpr_opt.bridge import compat
from jaxpr_opt.ir.by_element import by_element
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter

COMBINED: dict[str, Callable[..., Any]] = {
    "reduce_and": lax.bitwise_and, "reduce_max": lax.max, "reduce_min": lax.min,
    "reduce_or": lax.bitwise_or, "reduce_prod": lax.mul, "reduce_sum": lax.add,
    "reduce_xor": lax.bitwise_xor,
}  # fmt: skip
"""What a reduction does with two elements."""


def on_others(
    op: Op,
    operands: Sequence[Value],
    rw: Rewriter,
    *,
    before: Op,
    params: dict[str, Any] | None = None,
) -> Value:
    """The result of an op for other operands, with its parameters unless others are given."""
    code = partial(bound, op, params=params)
    return rw.typed(code, op.result.aval, *operands, before=before)


def bound(op: Op, *values: Any, params: dict[str, Any] | None = None) -> Any:
    """The same, of JAX's values."""
    if (call := by_element(op)) is not None:
        return call(*values)
    assert op.primitive is not None
    (result,) = compat.bind(op.primitive, values, op.params if params is None else params)
    return result


def evaluated(ops: Iterable[Op], made: Mapping[Value, Any]) -> dict[Value, Any]:
    """The values that are made already, and the results of ops, in order."""
    known = dict(made)
    for op in ops:
        known[op.result] = bound(op, *(known[v] for v in op.operands))
    return known


def spread(
    values: Iterable[Value], scalars: Iterable[Any], shape: tuple[int, ...]
) -> dict[Value, Any]:
    """Scalars, for the values that are or repeat them, repeated for elements of another shape."""
    pairs = zip(values, scalars, strict=True)
    return {value: lax.broadcast(x, shape) if value.shape else x for value, x in pairs}


def repeated(array: Any, shape: tuple[int, ...], axes: Sequence[int]) -> Any:
    """An array repeated for elements of another shape, where its axes that are longer than one are
    these, in any order.
    """
    long = [n for n in array.shape if n != 1]
    array = array if array.ndim == len(long) else lax.reshape(array, long)
    order = sorted(range(len(axes)), key=axes.__getitem__)
    return lax.broadcast_in_dim(lax.transpose(array, order), shape, sorted(axes))
