"""The axis of a result that an axis of an operand becomes, where each row stays by itself.

An op keeps the rows of an axis apart if row `b` of the result depends on row `b` of the operand
only, and on nothing else of it. `vmap` makes ops that keep the rows of a batch apart.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from jaxpr_opt.analysis.windows.window_primitives import (
    INDEXED_WRITES,
    UPDATE,
    indexed_axes,
    window_sizes,
)
from jaxpr_opt.bridge.parameters import (
    CUSTOM_JVP,
    axes_of,
    broadcast_dimensions_of,
    dimension_of,
    dimensions_of,
    groups_of,
    is_in_order,
    limits_of,
    numbers_of,
    padding_of,
    permutation_of,
    slice_sizes_of,
    starts_of,
    strides_of,
)
from jaxpr_opt.ir.by_element import by_element
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.traits import CUMULATIVE, ELEMENTWISE, OF_MATRICES, REDUCING

Rule = Callable[[Op, int, int], int | None]
"""For an op, the place of an operand, and an axis of that: the axis of the result, or None."""


def row_axis(op: Op, position: int, axis: int) -> int | None:
    """The axis of the results that an axis of an operand becomes; None if rows along it do not
    stay apart, or that is not known.
    """
    rule = _RULES.get(op.name)
    return rule(op, position, axis) if rule is not None else None


def axis_of_operand(op: Op, position: int, axis: int) -> int | None:
    """The axis of an operand that becomes an axis of the results; None if none is known to."""
    axes = range(len(op.operands[position].shape))
    return next((a for a in axes if row_axis(op, position, a) == axis), None)


def _same(op: Op, position: int, axis: int) -> int | None:
    """Axes of one element are repeated."""
    shape, made = op.operands[position].shape, op.results[0].shape
    return axis if len(shape) == len(made) and shape[axis] == made[axis] else None


def _custom(op: Op, position: int, axis: int) -> int | None:
    return _same(op, position, axis) if by_element(op) is not None else None


def _leading(op: Op, position: int, axis: int) -> int | None:
    """Each row has numbers of its own, which are further axes."""
    same = op.results[0].shape[: axis + 1] == op.operands[position].shape[: axis + 1]
    return axis if position == 0 and same else None


def _broadcast(op: Op, _: int, axis: int) -> int | None:
    to = int(broadcast_dimensions_of(op)[axis])
    return to if op.result.shape[to] == op.operands[0].shape[axis] else None


def _reshape(op: Op, _: int, axis: int) -> int | None:
    """The axis of as many rows with as many elements before it."""
    if op.name == "reshape" and not is_in_order(op):
        return None
    (shape, made), count = (op.operands[0].shape, op.result.shape), op.operands[0].shape[axis]
    before = prod(shape[:axis])
    found = (a for a, n in enumerate(made) if n == count and prod(made[:a]) == before)
    return next(found, None)


def _transpose(op: Op, _: int, axis: int) -> int | None:
    return permutation_of(op).index(axis)


def _reduce(op: Op, _: int, axis: int) -> int | None:
    reduced = axes_of(op)
    return None if axis in reduced else axis - len([each for each in reduced if each < axis])


def _along(op: Op, _: int, axis: int) -> int | None:
    return None if axis == dimension_of(op) else axis


def _stack(op: Op, _: int, axis: int) -> int | None:
    return axis + (axis >= dimension_of(op))


def _unstack(op: Op, _: int, axis: int) -> int | None:
    where = dimension_of(op)
    return None if axis == where else axis - (axis > where)


def _rev(op: Op, _: int, axis: int) -> int | None:
    return None if axis in dimensions_of(op) else axis


def _pad(op: Op, position: int, axis: int) -> int | None:
    return axis if position == 0 and not any(padding_of(op)[axis]) else None


def _slice(op: Op, _: int, axis: int) -> int | None:
    whole = 0, op.operands[0].shape[axis], 1
    return (
        axis if (starts_of(op)[axis], limits_of(op)[axis], strides_of(op)[axis]) == whole else None
    )


def _dynamic_slice(op: Op, position: int, axis: int) -> int | None:
    is_whole = position == 0 and slice_sizes_of(op)[axis] == op.operands[0].shape[axis]
    return axis if is_whole else None


def _dynamic_update_slice(op: Op, position: int, axis: int) -> int | None:
    is_whole = position < 2 and op.operands[1].shape[axis] == op.operands[0].shape[axis]
    return axis if is_whole else None


def _dot_general(op: Op, position: int, axis: int) -> int | None:
    """Axes of both that are multiplied row by row come first, then the others of each factor."""
    contracting, batch = numbers_of(op)
    if axis in batch[position]:
        return tuple(batch[position]).index(axis)
    if axis in contracting[position]:
        return None
    gone = {*contracting[position], *batch[position]}
    place = len(batch[0]) + len([each for each in range(axis) if each not in gone])
    rank = len(op.operands[0].shape)
    return place if position == 0 else place + rank - len(contracting[0]) - len(batch[0])


def _convolution(op: Op, position: int, axis: int) -> int | None:
    """Images, and what each kernel makes of them, unless there are groups of either."""
    numbers = numbers_of(op)
    spec = (numbers.lhs_spec, numbers.rhs_spec)[position]
    is_apart = groups_of(op) == (1, 1) and axis == spec[0]
    return int(numbers.out_spec[position]) if is_apart else None


def _gather(op: Op, position: int, axis: int) -> int | None:
    numbers, (array, index) = numbers_of(op), op.operands
    batching = dict(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    window = numbers.offset_dims
    lead = [axis for axis in range(len(op.result.shape)) if axis not in window]
    if position == 1:
        return lead[axis] if axis < len(index.shape) - 1 else None
    if axis in batching:
        return lead[batching[axis]]
    kept = [
        a for a in range(len(array.shape)) if a not in (*numbers.collapsed_slice_dims, *batching)
    ]
    is_whole = slice_sizes_of(op)[axis] == array.shape[axis] and axis not in indexed_axes(op)
    return window[kept.index(axis)] if is_whole and axis in kept else None


def _scatter(op: Op, position: int, axis: int) -> int | None:
    numbers, array = numbers_of(op), op.operands[0]
    batching = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    inserted = {*numbers.inserted_window_dims, *batching.values()}
    whole = [
        a
        for a, n in enumerate(window_sizes(op))
        if a not in inserted and n == array.shape[a] and a not in indexed_axes(op)
    ]
    if position == 0:
        return axis if axis in batching.values() or axis in whole else None
    if position == UPDATE.get(op.name, 2):
        window = numbers.update_window_dims
        if axis in window:
            kept = [a for a in range(len(array.shape)) if a not in inserted]
            to = kept[window.index(axis)]
            return to if to in whole else None
        axis -= len([each for each in window if each < axis])
    return batching.get(axis)


def _of_matrices(op: Op, _: int, axis: int) -> int | None:
    """Batches of matrices have their rows and columns last."""
    batch = max(len(v.shape) for v in op.operands) - 2
    return axis if axis < batch else None


_RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _same),
    **dict.fromkeys(REDUCING, _reduce),
    **dict.fromkeys((*CUMULATIVE, "concatenate", "sort", "split"), _along),
    **dict.fromkeys(("reshape", "squeeze"), _reshape),
    **dict.fromkeys(("random_bits", "random_split", "random_unwrap", "random_wrap"), _leading),
    **dict.fromkeys(INDEXED_WRITES, _scatter),
    **dict.fromkeys(OF_MATRICES, _of_matrices),
    "broadcast_in_dim": _broadcast,
    CUSTOM_JVP: _custom,
    "conv_general_dilated": _convolution,
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _pad,
    "rev": _rev,
    "slice": _slice,
    "stack": _stack,
    "transpose": _transpose,
    "unstack": _unstack,
}
