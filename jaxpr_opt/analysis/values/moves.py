"""Moves of all elements of an array that take each other back."""

from __future__ import annotations

from jaxpr_opt.bridge.parameters import dimensions_of, is_in_order, is_resharded, permutation_of
from jaxpr_opt.ir.graph import Op


def is_taken_back(made: Op, move: Op) -> bool:
    """Whether `move`, of what `made` makes of its operand, is that operand."""
    if not (len(made.operands) == len(move.operands) == len(move.results) == 1):
        return False
    source, result = made.operands[0], move.result
    if (source.shape, source.dtype) != (result.shape, result.dtype):
        return False
    if made.name == move.name == "transpose":
        inner = permutation_of(made)
        # Condition 3 of stack-read-windows.
        return all(inner[axis] == i for i, axis in enumerate(permutation_of(move)))
    # Condition 3 of stack-read-windows.
    if made.name == move.name == "rev":
        return dimensions_of(made) == dimensions_of(move)
    # Condition 3 of stack-read-windows.
    return keeps_order(made) and keeps_order(move)


def keeps_order(op: Op) -> bool:
    """Whether the op gives the elements of its operand another shape, in row-major order."""
    # Condition 1 of remove-idle-moves.
    if is_resharded(op):
        return False
    # Condition 1 of remove-idle-moves.
    if op.name == "reshape":
        return is_in_order(op)
    # Condition 1 of remove-idle-moves.
    if op.name == "broadcast_in_dim":  # its dimensions are in order
        # Condition 1 of remove-idle-moves.
        return len(op.operands) == 1 and op.operands[0].size == op.result.size
    return op.name == "squeeze"
