"""In which order of axes XLA reads the operands of products and convolutions.

A product reads its left operand as batches, rows and terms, and its right one as batches, terms and
columns.  An operand whose axes are in another order is copied first.  If the last two of a matrix,
or of a batch of them, only change places, it is read as it is.

Of numbers of 16 bits XLA:CPU makes copies of 32 bits, and a result of 32 bits, which is rounded
where it is read; but for products of `bfloat16` whose left operand has the terms last, maybe in a
copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from jaxpr_opt.bridge.compat_devices import MULTIPLIES_BFLOAT16
from jaxpr_opt.bridge.parameters import numbers_of, permutation_of
from jaxpr_opt.ir.graph import Op, Value

NARROW = frozenset({"bfloat16", "float16"})
"""Types of 16 bits."""

WIDE = 4
"""Bytes of a number of 32 bits."""

Shape = tuple[int, ...]
Order = tuple[int, ...]
"""Axes of an array, in the order in which they are read."""


class Copy(NamedTuple):
    """An operand that is copied before an op reads it, and the order of the copy's axes."""

    of: Value
    order: Order
    is_wide: bool = False
    """Whether the copy has 32 bits for each number of 16."""

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return WIDE * self.of.size if self.is_wide else self.of.nbytes


def copies(op: Op) -> list[Copy]:
    """The operands of a product or convolution that are copied first."""
    wide = is_widened(op)
    if op.name == "conv_general_dilated":
        return [
            Copy(operand, tuple(spec), wide)
            for operand, spec, is_last in zip(
                op.operands, numbers_of(op), features_last(op), strict=False
            )
            if wide or not is_last
        ]
    read = zip(op.operands, _orders(op), strict=True) if op.name == "dot_general" else ()
    there = [(v, order, _is_read_there(v, order, op)) for v, order in read]
    return [
        Copy(v, tuple(range(len(order))) if is_there else order, wide)
        for v, order, is_there in there
        if wide or not is_there
    ]


def is_widened(op: Op) -> bool:
    """Whether a product or convolution of numbers of 16 bits is computed of copies of 32."""
    if op.name not in {"conv_general_dilated", "dot_general"}:
        return False
    types = {operand.dtype.name for operand in op.operands}
    if types != {"bfloat16"} or op.name != "dot_general":
        return not types.isdisjoint(NARROW)
    is_known = MULTIPLIES_BFLOAT16 or op.result.dtype.name not in NARROW
    left, terms, order = op.operands[0], numbers_of(op)[0][0], next(_orders(op))
    is_last = tuple(terms) == tuple(range(len(left.shape)))[-len(terms) :]
    return not is_known or (not is_last and _is_read_there(left, order, op))


def bytes_made(value: Value) -> int:
    """Bytes of a value as an op makes it."""
    is_wide = value.op is not None and value.dtype.name in NARROW and is_widened(value.op)
    return WIDE * value.size if is_wide else value.nbytes


def is_read_transposed(op: Op, value: Value) -> bool:
    """Whether a product reads the array of which a value is the transpose."""
    if op.name != "dot_general" or value.op is None or value.op.name != "transpose":
        return False
    read = zip(op.operands, _orders(op), strict=True)
    return all(_is_read_there(v, order, op) for v, order in read if v is value)


def is_read_across(product: Op, place: int) -> bool:
    """Whether a product that multiplies an operand from the left reads it across the rows of the
    matrix, or of the array that is transposed there.
    """
    (terms, batches), value = numbers_of(product), product.operands[place]
    summed, batch = terms[place], batches[place]
    rest = [axis for axis in range(len(value.shape)) if axis not in summed and axis not in batch]
    order = (*batch, *rest, *summed)
    if value.op is not None and value.op.region is product.region:
        value, order = _untransposed(value, order)
    return _is_matrix(order, len(batch)) and not _is_in_place(value.shape, order)


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


def _untransposed(value: Value, order: Order) -> tuple[Value, Order]:
    """The array that a value is the transpose of, and the order of its axes; else the same."""
    if value.op is None or value.op.name != "transpose":
        return value, order
    moved = permutation_of(value.op)
    return value.op.operands[0], tuple(moved[axis] for axis in order)


def _is_read_there(value: Value, order: Order, product: Op) -> bool:
    """Whether a product reads an operand in this order without a copy of it, or of the array that
    it is the transpose of.
    """
    value, order = _untransposed(value, order)
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
