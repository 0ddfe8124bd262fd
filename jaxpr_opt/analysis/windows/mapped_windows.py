"""What becomes of a window in zeros, moved before the write: it is made of the window only.

Transposes of reads make such arrays, and transposes of what made the table then map them: of a
transposed or reshaped table, of ``-table``, of ``tanh(table)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from math import prod
from typing import Any

import jax
from jax import lax

from jaxpr_opt.analysis.values.algebra import Laws, Plainer
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.analysis.values.linearity import is_product_of_cotangent
from jaxpr_opt.analysis.values.moves import keeps_order
from jaxpr_opt.analysis.windows.moved_writes import MOVED_BEFORE, window_in_zeros
from jaxpr_opt.analysis.windows.placed_windows import each_before, placed_before, raised_before
from jaxpr_opt.analysis.windows.scatter_chains import Piece
from jaxpr_opt.analysis.windows.window_primitives import (
    UPDATE,
    places,
    replaced,
    written,
    written_transposed,
)
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    alike_in_both,
    numbers_of,
    permutation_of,
)
from jaxpr_opt.bridge.slicing import write_window
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import SUMS


def added_before(op: Op) -> Plainer | None:
    """Two windows in zeros at one place that are added up, and then to others, are their sum in
    zeros: the cotangents of two uses of one row.
    """
    first, second = (window_in_zeros(op, v, {"dynamic_update_slice"}) for v in op.operands)
    if first is None or second is None:
        return None
    windows, pairs = (
        (first.operands[1], second.operands[1]),
        zip(places(first), places(second), strict=True),
    )
    # Condition 4 of map-before-writing.
    if windows[0].shape != windows[1].shape:
        return None
    # Condition 4 of map-before-writing.
    if not all(same_expression(a, b, {}) for a, b in pairs):
        return None

    def added(value: jax.Array, other: jax.Array, *at: jax.Array) -> jax.Array:
        zeros = lax.full(op.result.shape, 0, value.dtype)
        return written(first, zeros, lax.add(value, other), *at)

    return Plainer(added, (*windows, *places(first)))


def turned_before(op: Op) -> Plainer | None:
    """A window in zeros that is transposed, and then added to others, is a transposed window in
    zeros: the cotangent of a read of a transposed table.
    """
    write = window_in_zeros(op, op.operands[0], UPDATE)
    if write is None:
        return None
    order = permutation_of(op)

    def turned(value: jax.Array, *at: jax.Array) -> jax.Array:
        zeros = lax.full(op.result.shape, 0, value.dtype)
        return written_transposed(write, order, zeros, value, *at)

    return Plainer(turned, (write.operands[UPDATE[write.name]], *places(write)))


def reshaped_before(op: Op) -> Plainer | None:
    """A window in zeros of which the axes are joined or split, and which is then added to others,
    is a window in zeros of that shape: the cotangent of a read of a reshaped table.
    """
    write = window_in_zeros(op, op.operands[0], {"dynamic_update_slice"})
    if write is None or not keeps_order(op):
        return None
    array, value, *at = write.operands
    moved = reshaped_window(array.shape, value.shape, op.result.shape)
    # Condition 2 of map-before-writing.
    if moved is None or not all(dtypes.holds(v.dtype, array.size) for v in at):
        return None
    sizes, start = moved

    def reshaped(value: jax.Array, *at: jax.Array) -> jax.Array:
        last = [n - size for n, size in zip(array.shape, write.operands[1].shape, strict=True)]
        inside = [
            lax.clamp(x.dtype.type(0), x, x.dtype.type(n)) for x, n in zip(at, last, strict=True)
        ]
        zeros = lax.full(op.result.shape, 0, value.dtype)
        return write_window(zeros, lax.reshape(value, sizes), start(inside))

    return Plainer(reshaped, (value, *at))


def scaled_before(op: Op) -> Plainer | None:
    """A window in zeros that is negated, converted or, as a cotangent, multiplied or divided, and
    then added to others, is what becomes of the window, in zeros.

    A zero cotangent stays zero under any product, as JAX itself has it where it knows the zero.
    """
    write = window_in_zeros(op, op.operands[0], UPDATE)
    other = op.operands[1] if len(op.operands) > 1 else None
    if write is None and op.name == "mul":
        write, other = window_in_zeros(op, op.operands[1], UPDATE), op.operands[0]
    if write is None:
        return None
    # Condition 3 of map-before-writing.
    if other is not None and not is_product_of_cotangent(write.result, other, loop_of(op)):
        return None
    # Condition 4 of map-before-writing.
    if op.name != "neg" and _may_meet(write):
        return None
    kind = op.result.dtype

    def made(value: jax.Array, *other: jax.Array) -> jax.Array:
        if op.name == "convert_element_type":
            return lax.convert_element_type(value, kind)
        if op.name == "neg":
            return lax.neg(value)
        return lax.mul(value, *other) if op.name == "mul" else lax.div(value, *other)

    def scaled(value: jax.Array, *rest: jax.Array) -> jax.Array:
        at, others = rest[: len(where)], rest[len(where) :]
        zeros = lax.full(op.result.shape, 0, kind)
        if other is not None and other.shape != zeros.shape:  # one number, or one along some axes
            axes = range(len(zeros.shape))[len(zeros.shape) - len(other.shape) :]
            others = tuple(lax.broadcast_in_dim(each, zeros.shape, axes) for each in others)
        value = made(value, *(replaced(write, each, *at) for each in others))
        if write.name == "scatter-add":
            (index,) = at
            return lax.scatter_add(zeros, index, value, numbers_of(write), **alike_in_both(write))
        return written(write, zeros, value, *at)

    where = places(write)
    value = write.operands[UPDATE[write.name]]
    return Plainer(scaled, (value, *where, *(() if other is None else (other,))))


def _may_meet(write: Op) -> bool:
    """Whether two windows may be added up in one place."""
    array, *at = write.operands
    return Piece(write, array, at[-1], tuple(at[:-1])).repeats


def reshaped_window(
    shape: Sequence[int], window: Sequence[int], new: Sequence[int]
) -> tuple[list[int], Callable[[Sequence[Any]], list[Any]]] | None:
    """The shape of a window in an array that is reshaped, and its starts by those that it had; None
    if it is no window there.
    """
    groups = list(_groups(shape, new))
    sizes = [
        _sizes([shape[i] for i in old], [window[i] for i in old], [new[j] for j in axes])
        for old, axes in groups
    ]

    def starts(at: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        for old, axes in groups:
            first = _first_of(
                [shape[i] for i in old], [window[i] for i in old], [at[i] for i in old]
            )
            digits: list[Any] = []
            for axis in reversed(axes[1:] if first is not None else ()):
                size = first.dtype.type(new[axis])
                digits.insert(0, lax.rem(first, size))
                first = lax.div(first, size)
            found += [0] * len(axes) if first is None else [first, *digits]
        return found

    # Condition 2 of map-before-writing.
    if any(each is None for each in sizes):
        return None
    return [size for each in sizes for size in each or ()], starts


def _sizes(shape: Sequence[int], window: Sequence[int], new: Sequence[int]) -> list[int] | None:
    """The sizes of a window along the axes that axes become; None if it is no window."""
    parts = [i for i, size in enumerate(window) if size != shape[i]]
    if not parts:
        return [*new]
    inner, run = prod(shape[parts[-1] + 1 :]), window[parts[-1]]
    # Condition 2 of map-before-writing.
    if prod(window) != inner * run:
        return None
    strides = [prod(new[j + 1 :]) for j in range(len(new))]
    if inner in strides and (run == 1 or strides.index(inner) == 0):
        return [
            size if n < inner else run if n == inner else 1
            for size, n in zip(new, strides, strict=True)
        ]
    # Condition 2 of map-before-writing.
    return [inner * run // strides[0], *new[1:]] if inner % strides[0] == 0 else None


def _first_of(shape: Sequence[int], window: Sequence[int], at: Sequence[Any]) -> Any:
    """The number of the first element of a window, counted over all axes; None if it is all."""
    terms, stride = [], 1
    for size, part, start in reversed([*zip(shape, window, at, strict=True)]):
        if part != size:
            terms.append(lax.mul(start, start.dtype.type(stride)))
        stride *= size
    return reduce(lax.add, terms) if terms else None


def _groups(shape: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The axes that a reshape joins, and what it makes of them."""
    sources, targets = [*range(len(shape))], [*range(len(new))]
    while sources or targets:
        old, axes = sources[:1], targets[:1]
        del sources[:1], targets[:1]
        while (have := prod(shape[i] for i in old)) != (want := prod(new[j] for j in axes)):
            (old if have < want else axes).append((sources if have < want else targets).pop(0))
        yield old, axes


LAWS: Laws = {
    "add": (added_before,),
    "add_any": (added_before,),
    "broadcast_in_dim": (each_before, raised_before, reshaped_before),
    "convert_element_type": (scaled_before,),
    "div": (scaled_before,),
    "dynamic_update_slice": (each_before, placed_before),
    "mul": (scaled_before,),
    "neg": (each_before, scaled_before),
    "pad": (each_before, placed_before),
    "reshape": (each_before, reshaped_before),
    "transpose": (each_before, turned_before),
}


def is_narrower_soon(value: Value, depth: int = 0) -> bool:
    """Whether a law above holds for what is only added to `value`, or for ops that it is made of:
    less is added once they are gone.
    """
    op = value.op
    if op is None or len(value.uses) > 1 or depth > limits.TERMS_OF_A_SUM:
        return False
    if any(law(op) is not None for law in LAWS.get(op.name, ())):
        return True
    if op.name not in SUMS and op.name not in MOVED_BEFORE:
        return False
    return any(is_narrower_soon(operand, depth + 1) for operand in op.operands)
