"""Functions of zeros to which elements are added at several places, each by itself.

It is the transpose of reading elements at several places (`jaxpr_opt.analysis.rows.selections`):
what an element at row `i` and column `j` contributes to a product is row `i` of it, made of row `j`
of the other factor; to a sum over both axes, one number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from jaxpr_opt.analysis.rows.added_rows import added_to_zeros, is_symbolic, multiplied
from jaxpr_opt.analysis.rows.read_rows import AxesOfPart, makes_most, makes_rows, windows_touched
from jaxpr_opt.analysis.rows.row_axes import axis_of_operand, row_axis
from jaxpr_opt.analysis.sparse.scatter_chains import Piece
from jaxpr_opt.analysis.values.linearity import linear_operands
from jaxpr_opt.analysis.windows.consecutive import axes_of_runs
from jaxpr_opt.bridge.parameters import numbers_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import Readers
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value, is_sized


@dataclass(frozen=True, slots=True, eq=False)
class AddedPoints:
    """Zeros to which elements are added, and the ops that need to compute what each contributes."""

    array: Value
    links: tuple[Piece, ...]
    """What adds elements."""
    ops: dict[Op, tuple[AxesOfPart, ...]]
    """In program order; for each operand, the axes along which one element is needed, with those of
    the array."""
    axes: dict[Value, AxesOfPart]
    """The same of the array, and of the results: what an axis has been summed up over is gone."""

    @property
    def points(self) -> int:
        """At how many places."""
        return sum(map(points_of, self.links))

    @property
    def dense(self) -> list[Value]:
        """What is made of the array, and read as a whole."""
        made = [op.result for op in self.ops]
        return [v for v in made if any(user not in self.ops for user in v.users)]

    @property
    def part(self) -> float:
        """The part of the array's elements that are added."""
        return self.points / prod(self.array.shape[axis] for axis in self.axes[self.array])

    def shape(self, value: Value, part: AxesOfPart) -> tuple[int, ...]:
        """The shape of what one element needs of a value."""
        return _shape(value, part)

    @property
    def parts(self) -> dict[Op, float]:
        """The part of what an op computes that it does for one element."""
        return {op: _share(op, parts, self.axes[op.result]) for op, parts in self.ops.items()}

    @property
    def windows(self) -> list[tuple[int, int]]:
        """How many windows are read of factors, and written to results, and of how many bytes."""
        touched = [
            (value, part)
            for op, parts in self.ops.items()
            for value, part in zip(op.operands, parts, strict=True)
            if part and value not in self.axes
        ]
        touched += [(value, self.axes[value]) for value in self.dense]
        times, every = self.points, [axes_of_runs(link.op) for link in self.links]
        at = frozenset.intersection(*every)
        return [windows_touched(v, part, self.shape(v, part), times, at) for v, part in touched]


def added_points(array: Value) -> AddedPoints | None:
    """The elements of an array that is zero but for these, with all that is made of them; None if
    it is no such array, or read as a whole.
    """
    chain = added_to_zeros(array)
    links = tuple(link for link in chain if isinstance(link, Piece))
    each = [_axes(link.op) for link in links]
    axes = each[0] if each else None
    # Condition 1 of compute-added-rows.
    if axes is None or len(links) < len(chain) or any(other != axes for other in each):
        return None
    ops, known = dict[Op, tuple[AxesOfPart, ...]](), {array: axes}
    points, pending = sum(map(points_of, links)), Readers(array.region)
    pending.add(array)
    for op in pending:
        found = _contributed(op, known) if len(ops) < limits.OPS_OF_ROWS else None
        if found is None or makes_most(op, points * _share(op, *found)):
            if array in op.operands:
                return None
            continue
        ops[op], known[op.result] = found
        if known[op.result]:
            pending.add(op.result)
    return AddedPoints(array, links, ops, known) if ops else None


def points_of(link: Piece) -> int:
    """At how many places a scatter adds elements."""
    return prod(link.indices[0].shape[:-1])


def _share(op: Op, parts: Sequence[AxesOfPart], to: AxesOfPart) -> float:
    """The part of what an op computes that it does for one element."""
    pairs = [*zip(op.operands, parts, strict=True), (op.result, to)]
    return min(prod(_shape(value, part)) / max(value.size, 1) for value, part in pairs)


def _shape(value: Value, part: AxesOfPart) -> tuple[int, ...]:
    return tuple(1 if axis in part else n for axis, n in enumerate(value.shape))


def _axes(scatter: Op) -> AxesOfPart | None:
    """The axes along which a scatter adds one element at each place; None if it adds more."""
    if scatter.name != "scatter-add":
        return None
    numbers, (array, index, update) = numbers_of(scatter), scatter.operands
    single = (*numbers.scatter_dims_to_operand_dims, *numbers.operand_batching_dims)
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = tuple(update.shape[d] for d in numbers.update_window_dims)
    sizes = [1 if axis in single else n for axis, n in enumerate(array.shape)]
    # Condition 1 of compute-added-rows.
    is_element = window == tuple(n for axis, n in enumerate(sizes) if axis not in gone)
    is_known = is_element and gone <= set(single) and is_sized(index.shape)
    return {axis: axis for axis in single} if is_known else None


def _contributed(
    op: Op, axes: Mapping[Value, AxesOfPart]
) -> tuple[tuple[AxesOfPart, ...], AxesOfPart] | None:
    """What an op needs of each operand for one element, and where what it makes of that is; None if
    it needs more.
    """
    if len(op.results) != 1 or not makes_rows(op) or op.name == "conv_general_dilated":
        return None
    is_fixed: Callable[[Value], bool] = lambda v: v not in axes  # noqa: E731
    # Conditions 2, 3 of compute-added-rows.
    if linear_operands(op, is_fixed) is None or any(map(is_sharded, (op.result, *op.operands))):
        return None
    if op.name in {"div", "dot_general", "mul"} and not is_symbolic(op, is_fixed):
        return None
    needed = [dict(axes.get(v, {})) for v in op.operands]
    made = [
        _made(op, place, axes[v], needed) for place, v in enumerate(op.operands) if not is_fixed(v)
    ]
    to = made[0]
    # Condition 2 of compute-added-rows.
    if to is None or any(each != to for each in made):
        return None
    for end, of in to.items():
        for place, value in enumerate(op.operands):
            axis = axis_of_operand(op, place, end) if is_fixed(value) else None
            if axis is not None:
                needed[place][axis] = of
    return tuple(needed), to


def _made(op: Op, place: int, part: AxesOfPart, needed: Sequence[AxesOfPart]) -> AxesOfPart | None:
    """Where what an op makes of an element of an operand is, with what it needs of another for
    that; None if it is not only there, and not summed up either.
    """
    pairs, to = multiplied(op, place), dict[int, int]()
    for axis, of in part.items():
        end = row_axis(op, place, axis)
        if end is not None:
            to[end] = of
        elif axis in pairs:
            needed[1 - place][pairs[axis]] = of
        # Condition 2 of compute-added-rows.
        elif op.name != "reduce_sum":
            return None
    return to
