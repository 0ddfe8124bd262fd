"""In which order of axes XLA reads the operands of products and convolutions.

A product reads its left operand as batches, rows and terms, and its right one as batches, terms and
columns.  An operand whose axes are in another order is copied first.  If the last two of a matrix,
or of a batch of them, only change places, it is read as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from jaxpr_opt.bridge.parameters import numbers_of, permutation_of
from jaxpr_opt.ir.graph import Op, Value

Shape = tuple[int, ...]
Order = tuple[int, ...]
"""Axes of an array, in the order in which they are read."""


class Copy(NamedTuple):
    """An operand that is copied before an op reads it, and the order of the copy's axes."""

    of: Value
    order: Order


def copies(op: Op) -> list[Copy]:
    """The operands of a product or convolution that are copied first."""
    if op.name == "conv_general_dilated":
        return [
            Copy(operand, tuple(spec))
            for operand, spec, is_last in zip(
                op.operands, numbers_of(op), features_last(op), strict=False
            )
            if not is_last
        ]
    read = zip(op.operands, _orders(op), strict=True) if op.name == "dot_general" else ()
    return [Copy(v, order) for v, order in read if not _is_read_there(v, order, op)]


def is_read_transposed(op: Op, value: Value) -> bool:
    """Whether a product reads the array of which a value is the transpose."""
    if op.name != "dot_general" or value.op is None or value.op.name != "transpose":
        return False
    read = zip(op.operands, _orders(op), strict=True)
    return all(_is_read_there(v, order, op) for v, order in read if v is value)


def is_made_transposed(transpose: Op) -> bool:
    """Whether a product makes its result as this op transposes it: it is not read otherwise, and
    rows and columns change places.
    """
    (made,) = transpose.operands
    if made.op is None or made.op.name != "dot_general" or len(made.uses) != 1:
        return False
    batches = len(numbers_of(made.op)[1][0])
    return _is_matrix(permutation_of(transpose), batches)


def shape_read(op: Op, value: Value) -> Shape:
    """The shape in which an op reads a value where it is: a product has one axis each of rows, of
    terms and of columns.
    """
    if op.name != "dot_general":
        return value.shape
    place = op.operands.index(value)
    order = (*_orders(op),)[place]
    return _merged(op, place) if _is_in_place(value.shape, order) else value.shape


def shape_made(value: Value) -> Shape:
    """The shape in which an op makes a value."""
    op = value.op
    if op is None or op.name != "dot_general":
        return value.shape
    _, batches = numbers_of(op)
    count = len(batches[0])
    return (*value.shape[:count], _merged(op, 0)[count], _merged(op, 1)[-1])


def _merged(product: Op, place: int) -> Shape:
    """The shape of an operand with one axis each of rows, of terms and of columns."""
    (terms, batches), shape = numbers_of(product), product.operands[place].shape
    batch, summed = batches[place], terms[place]
    rest = [size for axis, size in enumerate(shape) if axis not in summed and axis not in batch]
    sides = prod(rest), prod(shape[axis] for axis in summed)
    return (*(shape[axis] for axis in batch), *(reversed(sides) if place else sides))


def _orders(product: Op) -> Iterator[Order]:
    """The order in which a product reads the axes of each operand."""
    terms, batches = numbers_of(product)
    sides = zip(product.operands, terms, batches, strict=True)
    for place, (operand, summed, batch) in enumerate(sides):
        axes = range(len(operand.shape))
        rest = [axis for axis in axes if axis not in summed and axis not in batch]
        inner = (*summed, *rest) if place else (*rest, *summed)
        yield (*batch, *inner)


def _is_read_there(value: Value, order: Order, product: Op) -> bool:
    """Whether a product reads an operand in this order without a copy of it, or of the array that
    it is the transpose of.
    """
    if value.op is not None and value.op.name == "transpose":
        moved = permutation_of(value.op)
        value, order = value.op.operands[0], tuple(moved[axis] for axis in order)
    return _is_in_place(value.shape, order) or _is_matrix(order, len(numbers_of(product)[1][0]))


def _is_in_place(shape: Sequence[int], order: Order) -> bool:
    """Whether the axes are in order, but for those of one element."""
    long = [axis for axis in order if shape[axis] != 1]
    return long == sorted(long)


def _is_matrix(order: Order, batches: int) -> bool:
    """Whether the last two axes change places, after so many of a batch."""
    axes = tuple(range(batches))
    return order == (*axes, batches + 1, batches)


def features_last(convolution: Op) -> tuple[bool, bool]:
    """Whether the features of the image, and of the kernel, are the last axes."""
    numbers, n = numbers_of(convolution), len(convolution.result.shape) - 2
    is_image_last = tuple(numbers.lhs_spec) == (0, n + 1, *range(1, n + 1))
    return is_image_last, tuple(numbers.rhs_spec) == (n + 1, n, *range(n))
