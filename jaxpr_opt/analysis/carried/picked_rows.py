"""Stacks whose readers read one row, or one for each of a batch, at a place in the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxpr_opt.analysis.rows.row_readers import made_before
from jaxpr_opt.analysis.values.induction import component
from jaxpr_opt.analysis.windows.window_primitives import indexed_axes
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import numbers_of, permutation_of, slice_sizes_of
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Scan, Stack, Value


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """A read of one row of a stack, or one for each row of a batch."""

    op: Op
    index: Value
    """What says where: for a gather, one component of it."""
    component: int | None
    turned: tuple[Op, ...]
    """What transposes the stack before it is read, in order."""
    axis: int
    """The axis of what is read along which the rows of the stack lie."""
    batch: tuple[tuple[int, int], ...]
    """Axes of the index, each with the axis of a row of the stack along which its places are."""

    @property
    def position(self) -> int:
        """Which operand the index is: a slice may start at one number along several axes."""
        return 1 if self.component is not None else 1 + self.axis


@dataclass(frozen=True, slots=True, eq=False)
class PickedRows:
    """A stack all of whose readers pick rows."""

    stack: Stack
    picks: tuple[Pick, ...]
    moved: tuple[Op, ...]
    """What has to be computed before the loop to know where, in order."""


def picked_rows(scan: Scan, stack: Stack) -> PickedRows | None:
    """How rows of a stack are picked; None if it is read otherwise."""
    if is_sharded(stack.result):
        return None
    found = list(_picks(stack.result))
    picks = tuple(pick for pick in found if pick is not None)
    # Condition 1 of carry-picked-rows.
    if not picks or len(picks) < len(found):
        return None
    moved: dict[Op, None] = {}
    for pick in picks:
        # Condition 2 of carry-picked-rows.
        ops = made_before(pick.index, scan) if dtypes.is_integer(pick.index.dtype) else None
        if ops is None:
            return None
        moved.update(dict.fromkeys(ops))
    assert scan.region is not None
    return PickedRows(stack, picks, tuple(sorted(moved, key=scan.region.order)))


def _picks(stacked: Value) -> Iterator[Pick | None]:
    """The reads of a stack; None for another reader."""
    pending: list[tuple[Value, tuple[Op, ...], tuple[int, ...]]]
    pending = [(stacked, (), tuple(range(len(stacked.shape))))]
    for array, turned, axes in pending:
        for op, position in array.uses:
            if op.name == "transpose" and op.result.uses:
                order = tuple(axes[axis] for axis in permutation_of(op))
                pending.append((op.result, (*turned, op), order))
            elif op.name == "dynamic_slice" and position == 0:
                yield _sliced(op, turned, axes)
            elif op.name == "gather" and position == 0:
                yield _gathered(op, turned, axes)
            else:
                yield None


def _sliced(op: Op, turned: tuple[Op, ...], axes: tuple[int, ...]) -> Pick | None:
    axis = axes.index(0)
    # Condition 1 of carry-picked-rows.
    if slice_sizes_of(op)[axis] != 1:
        return None
    return Pick(op, op.operands[1 + axis], None, turned, axis, ())


def _gathered(op: Op, turned: tuple[Op, ...], axes: tuple[int, ...]) -> Pick | None:
    numbers, axis, (array, index) = numbers_of(op), axes.index(0), op.operands
    indexed = indexed_axes(op)
    # Condition 1 of carry-picked-rows.
    if axis not in indexed or slice_sizes_of(op)[axis] != 1:
        return None
    along = dict(
        zip(numbers.start_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    for number, of in enumerate(indexed):
        counted = _counted(index, number) if of != axis and slice_sizes_of(op)[of] == 1 else None
        if counted is not None and index.shape[counted] == array.shape[of]:
            along.setdefault(counted, of)
    # Condition 3 of carry-picked-rows.
    if any(n != 1 and at not in along for at, n in enumerate(index.shape[:-1])):
        return None
    batch = tuple((at, axes[of] - 1) for at, of in sorted(along.items()))
    return Pick(op, index, indexed.index(axis), turned, axis, batch)


def _counted(index: Value, number: int) -> int | None:
    """The axis of an index whose rows a component of it counts from zero."""
    found = component(index, number)
    if found is None or found.steps or found.offset:
        return None
    counted = [at for at, stride in enumerate(found.strides) if stride]
    is_one = len(counted) == 1 and found.strides[counted[0]] == 1
    return counted[0] if is_one else None
