"""Functions, row by row, of zeros to which rows are added, up to a sum over the rows.

It is the transpose of `jaxpr_opt.analysis.rows.read_rows`: a read of some rows of what ops
compute row by row becomes an addition of rows to zeros, of which the transposes of the ops compute
cotangents, row by row, and sums over all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from jaxpr_opt.analysis.rows.read_rows import makes_rows
from jaxpr_opt.analysis.rows.row_axes import axis_of_operand, row_axis
from jaxpr_opt.analysis.sparse.scatter_chains import Link, Piece, added, is_read_nowhere
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.values.linearity import (
    is_product_of_cotangent,
    is_transposed,
    linear_operands,
)
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import axes_of, groups_of, numbers_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import Readers
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value, is_sized

_PRODUCTS = frozenset({"conv_general_dilated", "div", "dot_general", "mul"})
Axes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AddedRows:
    """Zeros to which rows are added, and the ops that need to compute only these rows."""

    array: Value
    links: tuple[Link, ...]
    """What adds rows, first to last."""
    count: int
    """How many rows, in all."""
    ops: dict[Op, Axes]
    """In program order; for each operand the axis along which only the rows are needed, None if all
    of it is."""
    axes: dict[Value, int | None]
    """Of the array, and of the results, the axis along which the rows are; None where they are
    summed up."""

    @property
    def axis(self) -> int:
        """The axis of the array along which the rows are."""
        axis = self.axes[self.array]
        assert axis is not None
        return axis

    @property
    def dense(self) -> list[Value]:
        """What is made of the rows, and read as a whole."""
        made = [op.result for op in self.ops if self.axes[op.result] is not None]
        return [v for v in made if any(user not in self.ops for user in v.users)]

    @property
    def is_one_window(self) -> bool:
        """Whether the rows lie beside each other, and are read and written as one window."""
        (link, *more) = self.links
        return isinstance(link, Piece) and link.op.name != "scatter-add" and not more

    @property
    def part(self) -> float:
        """The part of the array's rows that are added."""
        return self.count / self.array.shape[self.axis]


def added_rows(array: Value) -> AddedRows | None:
    """The rows of an array that is zero but for rows, with all that is made of them; None if it is
    no such array, or read as a whole.
    """
    links = added_to_zeros(array)
    counts = _counts(links) if links else {}
    if not counts:
        return None
    axis = min(counts, key=lambda a: counts[a] / array.shape[a])
    ops: dict[Op, Axes] = {}
    axes: dict[Value, int | None] = {array: axis}
    pending = Readers(array.region)
    pending.add(array)
    for op in pending:
        rows = _rows(op, axes) if len(ops) < limits.OPS_OF_ROWS else None
        if rows is None:
            if array in op.operands:
                return None
            continue
        ops[op], axes[op.result] = rows
        if axes[op.result] is not None:
            pending.add(op.result)
    return AddedRows(array, links, counts[axis], ops, axes) if ops else None


def added_to_zeros(array: Value) -> tuple[Link, ...]:
    """What adds to an array of zeros, first to last; none if it is no such array."""
    chain = added(array)
    is_known = is_sized(array.shape) and not is_sharded(array) and array.region is not None
    # Conditions 1, 3 of compute-added-rows.
    if not (chain.starts_at_zero and is_known and _is_wide(array) and array.size):
        return ()
    return tuple(chain.links)


def _is_wide(array: Value) -> bool:
    return dtypes.is_inexact(array.dtype) and dtypes.has_common_range(array.dtype)


def _counts(links: Sequence[Link]) -> dict[int, int]:
    """How many rows links add to, along each axis along which all of them add to rows."""
    each = [_count(link) for link in links]
    shared = set(each[0]).intersection(*each[1:])
    return {axis: sum(counts[axis] for counts in each) for axis in shared}


def _count(link: Link) -> Mapping[int, int]:
    if not isinstance(link, Piece):
        # Condition 1 of compute-added-rows.
        if not is_read_nowhere(link):
            return {}
        return {a: link.op.length * n for a, n in _counts(link.inner.links).items()}
    shape, update = link.result.shape, link.update.shape
    if link.op.name == "scatter-add":
        axis = picked_axis(link.op)
        return {} if axis is None else {axis: prod(link.indices[0].shape[:-1])}
    # Condition 1 of compute-added-rows.
    if link.op.name == "scatter":
        return {}
    return {axis: n for axis, n in enumerate(update) if n < shape[axis]}


def picked_axis(scatter: Op) -> int | None:
    """The axis along which a scatter adds whole rows at several places; None if it does not."""
    numbers, (array, _, update) = numbers_of(scatter), scatter.operands
    # Condition 1 of compute-added-rows.
    if len(numbers.scatter_dims_to_operand_dims) != 1:
        return None
    (axis,) = numbers.scatter_dims_to_operand_dims
    if tuple(numbers.inserted_window_dims) != (axis,) or numbers.operand_batching_dims:
        return None
    others = tuple(n for a, n in enumerate(array.shape) if a != axis)
    is_whole = tuple(update.shape[d] for d in numbers.update_window_dims) == others
    return axis if is_whole else None


def _rows(op: Op, axes: Mapping[Value, int | None]) -> tuple[Axes, int | None] | None:
    """Of which rows of each operand an op makes those of its result, and the axis of these; None if
    it needs more.
    """
    if len(op.results) != 1 or not makes_rows(op):
        return None
    is_fixed: Callable[[Value], bool] = lambda v: axes.get(v) is None  # noqa: E731
    moving = linear_operands(op, is_fixed)
    # Conditions 2, 3 of compute-added-rows.
    if moving is None or any(map(is_sharded, (op.result, *op.operands))):
        return None
    if op.name in _PRODUCTS and not is_symbolic(op, is_fixed):
        return None
    known = {place: axes[v] for place, v in enumerate(op.operands) if not is_fixed(v)}
    to = {row_axis(op, place, axis) for place, axis in known.items() if axis is not None}
    # Condition 2 of compute-added-rows.
    if len(to) > 1:
        return None
    (end,) = to
    others = _summed(op, known) if end is None else _apart(op, end)
    if others is None:
        return None
    return tuple(known.get(place, axis) for place, axis in enumerate(others)), end


def _apart(op: Op, axis: int) -> Axes:
    """The axis of each operand that becomes an axis of the result."""
    return tuple(axis_of_operand(op, place, axis) for place in range(len(op.operands)))


def _summed(op: Op, known: Mapping[int, int | None]) -> Axes | None:
    """The axis of each operand along which an op sums up; None if it does not."""
    ((place, axis),) = known.items() if len(known) == 1 else ((0, None),)
    if op.name == "reduce_sum":
        return (axis,) if axis in axes_of(op) else None
    if axis is None:
        return None
    pairs = multiplied(op, place)
    if axis not in pairs:
        return None
    return (axis, pairs[axis]) if place == 0 else (pairs[axis], axis)


def multiplied(op: Op, place: int) -> dict[int, int]:
    """The axes of a factor over which a product sums up; each with that of the other factor."""
    if op.name == "conv_general_dilated" and groups_of(op) == (1, 1):
        specs = numbers_of(op).lhs_spec, numbers_of(op).rhs_spec
        return {specs[place][1]: specs[1 - place][1]}
    if op.name != "dot_general":
        return {}
    contracted, _ = numbers_of(op)
    return dict(zip(contracted[place], contracted[1 - place], strict=True))


def is_symbolic(op: Op, is_fixed: Callable[[Value], bool]) -> bool:
    """Whether a product of zeros is zero whatever the other factor, as in JAX's own transposes."""
    value, other = op.operands[::-1] if is_fixed(op.operands[0]) else op.operands
    # Condition 3 of compute-added-rows.
    return is_transposed(op) or is_product_of_cotangent(value, other, loop_of(op))
