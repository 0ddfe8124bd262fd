"""Memory that XLA:CPU needs for an op beside its operands and results, while the op runs."""

from __future__ import annotations

from math import prod

from jaxpr_opt.bridge.parameters import dimension_of, window_padding_of
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import CUMULATIVE, SCATTERING, is_broadcast

THREEFRY_WORDS = 2
"""Words of 32 bits for each random number: each loop of the function makes a pair of arrays of a
pair. What reads the numbers makes them of the last."""

BYTES_OF_A_WORD = 4

BYTES_OF_A_NUMBER = 4
"""Bytes of the number of an element along an axis."""

BLOCK = 16
"""Numbers of a row that are summed up as a block, if it has more; then the sums of blocks are."""


def scratch_bytes(op: Op) -> int:
    """The bytes; 0 for most ops, and for symbolic shapes."""
    if not all(value.nbytes for value in op.results):
        return 0
    if op.name == "random_bits":
        return sum(words_between(op))
    if op.name in CUMULATIVE:
        (row,), nbytes = op.operands, op.result.nbytes
        if row.shape[dimension_of(op)] <= BLOCK:
            return 0
        is_written_over = row.op is not None and len(row.uses) == 1
        return nbytes // BLOCK + (0 if is_written_over else nbytes)
    if op.name == "select_and_scatter_add":
        return _of_selected(op)
    if op.name in SCATTERING:
        updates = op.operands[2]
        return updates.nbytes if updates.op is not None and is_broadcast(updates.op) else 0
    return 0


def words_between(op: Op) -> tuple[int, ...]:
    """The arrays, in bytes, that an op of several loops holds between two loops: XLA:CPU runs ops
    that are ready at once in turns, a loop of each.
    """
    if op.name != "random_bits" or not _is_threefry(op) or not op.result.nbytes:
        return ()
    return (BYTES_OF_A_WORD * op.result.size,) * THREEFRY_WORDS


def words_made(value: Value) -> tuple[int, ...]:
    """The arrays, in bytes, that a value is in memory, if these are several."""
    is_made = value.op is not None and value.dtype.itemsize == BYTES_OF_A_WORD
    return words_between(value.op) if is_made and value.op is not None else ()


def _of_selected(op: Op) -> int:
    """For the gradient of a maximum over windows: arrays of the number along each axis of each
    element, what is selected of each window and where it is, and a padded copy.
    """
    source, operand = op.operands
    sides = zip(operand.shape, window_padding_of(op), strict=True)
    padded = prod(low + size + high for size, (low, high) in sides)
    numbers = BYTES_OF_A_NUMBER * len(operand.shape) * (padded + source.size)
    copy = padded * operand.dtype.itemsize if padded > operand.size else 0
    return numbers + 2 * source.nbytes + copy


def _is_threefry(op: Op) -> bool:
    return str(op.operands[0].dtype) == "key<fry>"
