"""The bytes that an op moves: of an array that it reads or writes in part, the windows only."""

from __future__ import annotations

from math import prod

from jaxpr_opt.bridge.parameters import numbers_of
from jaxpr_opt.cost.ops import cost
from jaxpr_opt.ir.graph import Cond, Op, Value
from jaxpr_opt.ir.traits import SCATTERING

READS = frozenset({"dynamic_slice", "gather", "slice", "split"})
"""Of the first operand no more is touched than what is read of it."""
WINDOW_WRITES = SCATTERING | {"dynamic_update_slice"}
"""The result is the first operand, but for a window that the other operands tell."""


def bytes_moved(op: Op) -> int:
    """Bytes that an op writes, the window where it writes one in place; and bytes that a product
    reads, as no op before it hands them on in registers.
    """
    if op.name in WINDOW_WRITES:
        return op.operands[1 if op.name == "dynamic_update_slice" else 2].nbytes
    read = op.operands if op.name == "dot_general" else ()
    return sum(v.nbytes for v in (*op.results, *read))


def numbers_converted(op: Op) -> int:
    """Numbers of bfloat16 that XLA, before JAX 0.11, converts to float32 and back as an op writes
    one window of them: all of the array.
    """
    is_one = op.name in WINDOW_WRITES and windows_apart(op) <= 1
    return 2 * op.result.size if is_one and op.result.dtype.name == "bfloat16" else 0


def bytes_handed_on(op: Op) -> int:
    """Bytes of results of a cond that are arrays from outside, but for windows that a branch writes
    in place: they are not moved where XLA does not copy what a branch writes to.
    """
    if not isinstance(op, Cond):
        return 0
    kept = (each for each in op.outcomes if not any(map(op.defines, map(_written_to, each.values))))
    return sum(each.result.nbytes for each in kept)


def _written_to(value: Value) -> Value:
    """The array that a value is, or was before windows were written."""
    while value.op is not None and value.op.name in WINDOW_WRITES:
        value = value.op.operands[0]
    return value


def bytes_touched(op: Op) -> int:
    """Bytes that an op reads and writes, of an array that it looks into, or writes in place, the
    windows.
    """
    if op.name in READS:
        return 2 * sum(v.nbytes for v in op.results) + sum(v.nbytes for v in op.operands[1:])
    if op.name in WINDOW_WRITES:
        return 2 * sum(v.nbytes for v in op.operands[1:])
    return cost(op).bytes or 0


def windows_apart(op: Op) -> int:
    """How many windows an op writes, or reads at places of several numbers each, which one
    function of a loop puts together again and again.
    """
    if op.name not in SCATTERING and op.name != "gather":
        return 0
    numbers = op.operands[1].shape[-1]
    return windows_of(op) if numbers > 1 or op.name in SCATTERING else 0


def rows_apart(op: Op) -> int:
    """How many windows a gather reads, each in its row of a batch, at a place of one number."""
    return windows_of(op) if is_in_rows(op) and not windows_apart(op) else 0


def is_in_rows(op: Op) -> bool:
    """Whether an op reads windows each in its row of a batch."""
    return op.name == "gather" and bool(numbers_of(op).operand_batching_dims)


def windows_of(op: Op) -> int:
    """How many windows a gather reads, or a scatter writes: one for each place that it is given."""
    return prod(op.operands[1].shape[:-1])
