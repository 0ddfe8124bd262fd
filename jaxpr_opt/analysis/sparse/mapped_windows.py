"""Functions of an array that is zero but for a window, computed from the window only.

Transposes of reads make such arrays, and transposes of what made the table then map them: of a
transposed or reshaped table, of ``-table``, of ``tanh(table)``.
"""

from __future__ import annotations

import jax
from jax import lax

from jaxpr_opt.analysis.sparse.moved_writes import MOVED_BEFORE, window_in_zeros
from jaxpr_opt.analysis.sparse.placed_windows import each_before, placed_before, raised_before
from jaxpr_opt.analysis.sparse.scatter_chains import Piece
from jaxpr_opt.analysis.sparse.turned_windows import cropped_before, reversed_before
from jaxpr_opt.analysis.values.algebra import Laws, Plainer
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.analysis.values.linearity import is_product_of_cotangent
from jaxpr_opt.analysis.values.moves import keeps_order
from jaxpr_opt.analysis.windows.reshaped import reshaped_window
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


LAWS: Laws = {
    "add": (added_before,),
    "add_any": (added_before,),
    "broadcast_in_dim": (each_before, raised_before, reshaped_before),
    "convert_element_type": (scaled_before,),
    "div": (scaled_before,),
    "dynamic_update_slice": (each_before, placed_before),
    "mul": (scaled_before,),
    "neg": (each_before, scaled_before),
    "pad": (each_before, placed_before, cropped_before),
    "reshape": (each_before, reshaped_before),
    "rev": (each_before, reversed_before),
    "slice": (each_before, cropped_before),
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
