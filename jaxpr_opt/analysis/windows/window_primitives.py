"""How JAX's primitives say which windows of an array they read, write, add to or combine.

These are facts about one op, whatever its indices are. Where a window is, `access` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax import lax

from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    alike_in_both,
    mode_of,
    numbers_of,
    padding_of,
    slice_sizes_of,
)
from jaxpr_opt.bridge.slicing import write_window
from jaxpr_opt.cost.windows import windows_of
from jaxpr_opt.ir.graph import Op, Value

UPDATE = {"dynamic_update_slice": 1, "scatter": 2, "scatter-add": 2}
"""Which operand the primitives that write or add to windows write; the array is the first. What
combines windows has it where other scatters have it.
"""

WRITES = frozenset(UPDATE)
"""The primitives that write or add to a window."""

COMBINING = {"scatter-max": lax.max, "scatter-min": lax.min, "scatter-mul": lax.mul}
"""The primitives that write what they make of a window and of an update, and what makes it."""

INDEXED_WRITES = frozenset({"scatter", "scatter-add", *COMBINING})
"""The primitives that write, add or combine windows at places that an array of indices says."""

UPDATING = WRITES | INDEXED_WRITES
"""The primitives that write, add or combine windows: XLA may do so in place."""

CLIP = lax.GatherScatterMode.CLIP


def scattering(write: Op) -> Callable[..., jax.Array]:
    """What adds windows as a scatter does, or writes them."""
    return lax.scatter_add if write.name == "scatter-add" else lax.scatter


def windows_read(read: Op) -> int:
    """How many windows an op reads; one for each place that a gather is given."""
    return windows_of(read) if read.name == "gather" else 1


def neutral(write: Op) -> Any:
    """The number that changes nothing where an op adds it or combines it; None for a write, or if
    there is none.
    """
    if write.name not in COMBINING and write.name != "scatter-add":
        return None
    return dtypes.neutral(write.operands[0].dtype, write.name.removeprefix("scatter-"))


def mirrored(scatter: Op) -> lax.GatherDimensionNumbers:
    """The dimension numbers with which a gather reads the windows that a scatter writes."""
    return _mirrored(numbers_of(scatter))


def _mirrored(numbers: Any) -> lax.GatherDimensionNumbers:
    return lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )


def window_sizes(write: Op) -> tuple[int, ...]:
    """The sizes of one window that an op writes, along all axes of the array."""
    if write.name == "dynamic_update_slice":
        return write.operands[UPDATE[write.name]].shape
    numbers, (array, _, update) = numbers_of(write), write.operands
    missing = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = (update.shape[axis] for axis in numbers.update_window_dims)
    return tuple(1 if axis in missing else next(kept) for axis in range(len(array.shape)))


def is_slice(write: Op) -> bool:
    """Whether an op writes one window with all axes of the array, at a place that is clamped: a
    `dynamic_update_slice`, or what `vmap` makes of it where the place is that of all rows.
    """
    if write.name not in INDEXED_WRITES:
        return True
    numbers, index = numbers_of(write), write.operands[1]
    missing = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    return len(index.shape) == 1 and not missing and mode_of(write) == CLIP


def single_axes(write: Op) -> tuple[int, ...]:
    """The axes along which a window is one element of several, and has an axis for it."""
    pairs = enumerate(zip(write.result.shape, window_sizes(write), strict=True))
    return tuple(axis for axis, (n, size) in pairs if size == 1 < n)


def row_numbers(write: Op) -> Any:
    """The dimension numbers with which a scatter writes the rows that an op writes: those of a
    slice have no single axes.
    """
    if not is_slice(write):
        return numbers_of(write)
    single = single_axes(write)
    rest = tuple(range(len(write.result.shape) - len(single)))
    return lax.ScatterDimensionNumbers(rest, single, single)


def rows_mirrored(write: Op) -> lax.GatherDimensionNumbers:
    """The dimension numbers with which a gather reads these rows."""
    return _mirrored(row_numbers(write))


def update_axes(write: Op) -> dict[int, int]:
    """The axes of the array that windows have, and those of a batch, each with that of what is
    written.
    """
    if write.name not in INDEXED_WRITES:
        return {axis: axis for axis in range(len(write.result.shape))}
    numbers, (array, _, update) = numbers_of(write), write.operands
    missing = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = (axis for axis in range(len(array.shape)) if axis not in missing)
    found = dict(zip(kept, numbers.update_window_dims, strict=True))
    lead = [d for d in range(len(update.shape)) if d not in numbers.update_window_dims]
    batches = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
    return found | {axis: lead[dim] for axis, dim in zip(*batches, strict=True)}


def leading_rows(write: Op) -> int:
    """Along how many first axes of the array the windows that an op writes are rows, those of a
    batch included; 0 if they are none.
    """
    numbers, shape = rows_mirrored(write), write.result.shape
    rows = (*numbers.operand_batching_dims, *numbers.start_index_map)
    missing = {*numbers.operand_batching_dims, *numbers.collapsed_slice_dims}
    are_whole = window_sizes(write)[len(rows) :] == shape[len(rows) :]
    return len(rows) if rows == (*range(len(rows)),) and missing >= {*rows} and are_whole else 0


def indexed_axes(op: Op) -> tuple[int, ...]:
    """The axis of the array that each component of the index of a gather or scatter is for."""
    numbers = numbers_of(op)
    return tuple(
        numbers.start_index_map if op.name == "gather" else numbers.scatter_dims_to_operand_dims
    )


def component_of(op: Op, axis: int) -> tuple[int, int | None]:
    """The operand that says where a window starts along an axis, and which component of it."""
    if op.name == "dynamic_slice":
        return 1 + axis, None
    if op.name == "dynamic_update_slice":
        return 2 + axis, None
    indexed = indexed_axes(op)
    return 1, indexed.index(axis) if axis in indexed else None


def places(write: Op) -> list[Value]:
    """The operands that say where an op writes, adds to or combines windows."""
    return [v for at, v in enumerate(write.operands) if at not in {0, UPDATE.get(write.name, 2)}]


def is_same_window(read: Op, write: Op) -> bool:
    """Whether one op reads the windows that another writes or adds to, in any array, clamped or
    dropped alike out of range.
    """
    if read.name not in {"dynamic_slice", "gather"}:
        return False
    here, there = read.operands[1:], places(write)
    if len(here) != len(there):
        return False
    if not all(same_expression(a, b, {}) for a, b in zip(here, there, strict=True)):
        return False
    if write.name == "dynamic_update_slice":
        return read.name == "dynamic_slice" and read.result.shape == write.operands[1].shape
    numbers, sizes = mirrored(write), window_sizes(write)
    if read.name != "gather":
        return False
    wanted = (numbers, sizes, mode_of(write))
    return bool((numbers_of(read), slice_sizes_of(read), mode_of(read)) == wanted)


def replaced(write: Op, array: jax.Array, *at: jax.Array) -> jax.Array:
    """The windows of another array that an op would replace, in the shape of its update; zeros
    where they are dropped.
    """
    if write.name == "dynamic_update_slice":  # negative indices have been wrapped around already
        shape = write.operands[UPDATE[write.name]].shape
        return lax.dynamic_slice(array, at, shape, allow_negative_indices=False)
    (index,), numbers, sizes = at, mirrored(write), window_sizes(write)
    return lax.gather(array, index, numbers, sizes, fill_value=0, **alike_in_both(write))


def written(write: Op, array: jax.Array, value: jax.Array, *at: jax.Array) -> jax.Array:
    """Another array with another value in the windows of an op."""
    if write.name == "dynamic_update_slice":
        return lax.dynamic_update_slice(array, value, at, allow_negative_indices=False)
    (index,), numbers = at, numbers_of(write)
    return lax.scatter(array, index, value, numbers, **alike_in_both(write))


def written_transposed(
    write: Op, order: Sequence[int], array: jax.Array, value: jax.Array, *at: jax.Array
) -> jax.Array:
    """The transposed result of a write or an addition, made by writing to the array transposed by
    `order`.
    """
    if write.name == "dynamic_update_slice":
        starts = [at[axis] for axis in order]
        return write_window(array, lax.transpose(value, order), starts)
    numbers = numbers_of(write)
    new = {axis: place for place, axis in enumerate(order)}
    batches = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    pairs = sorted((new[axis], dim) for axis, dim in batches)
    missing = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    axes = [axis for axis in range(len(order)) if axis not in missing]
    dims = dict(zip(axes, numbers.update_window_dims, strict=True))
    moved = dict(
        zip(numbers.update_window_dims, (dims[a] for a in order if a in dims), strict=True)
    )
    there = lax.ScatterDimensionNumbers(
        update_window_dims=numbers.update_window_dims,
        inserted_window_dims=tuple(sorted(new[axis] for axis in numbers.inserted_window_dims)),
        scatter_dims_to_operand_dims=tuple(
            new[axis] for axis in numbers.scatter_dims_to_operand_dims
        ),
        operand_batching_dims=tuple(axis for axis, _ in pairs),
        scatter_indices_batching_dims=tuple(dim for _, dim in pairs),
    )
    value = lax.transpose(value, [moved.get(dim, dim) for dim in range(value.ndim)])
    scatter = scattering(write)
    (index,) = at
    return scatter(array, index, value, there, **alike_in_both(write))


def written_within(
    write: Op,
    starts: Mapping[int, Any],
    array: jax.Array,
    value: jax.Array,
    *at: jax.Array,
) -> jax.Array:
    """The value that a scatter writes or adds, in an array that is longer along some axes, where
    all windows start at one place.
    """
    (index,), numbers = at, numbers_of(write)
    numbers = numbers._replace(
        scatter_dims_to_operand_dims=(*numbers.scatter_dims_to_operand_dims, *starts)
    )
    scatter = scattering(write)
    index = further_indexed(index, starts.values())
    return scatter(
        array, index, value, numbers, **{**alike_in_both(write), "indices_are_sorted": False}
    )


def further_indexed(index: jax.Array, starts: Iterable[Any]) -> jax.Array:
    """The places of windows, with more components, which are the same for all windows."""
    shape = *index.shape[:-1], 1
    more = [lax.broadcast(lax.convert_element_type(s, index.dtype), shape) for s in starts]
    return lax.concatenate([index, *more], len(shape) - 1)


def written_at_axes(
    write: Op, axes: Sequence[int], array: jax.Array, value: jax.Array, index: jax.Array
) -> jax.Array:
    """The result of a scatter into an array with further axes of size 1; `axes` are the original
    ones.
    """
    numbers, rank = numbers_of(write), array.ndim

    def there(dims: Sequence[int]) -> tuple[int, ...]:
        return tuple(axes[dim] for dim in dims)

    new = (axis for axis in range(rank) if axis not in axes)
    numbers = numbers._replace(
        inserted_window_dims=tuple(sorted({*new, *there(numbers.inserted_window_dims)})),
        scatter_dims_to_operand_dims=there(numbers.scatter_dims_to_operand_dims),
        operand_batching_dims=there(numbers.operand_batching_dims),
    )
    scatter = scattering(write)
    return scatter(array, index, value, numbers, **alike_in_both(write))


def written_in_each(
    write: Op, rows: Sequence[int], array: jax.Array, value: jax.Array, *at: jax.Array
) -> jax.Array:
    """The result of a write, an addition or a pad on an array and a value that are repeated along
    new first axes of sizes `rows`.
    """
    count = len(rows)
    if write.name == "pad":
        return lax.pad(array, value, [*((0, 0, 0) for _ in rows), *padding_of(write)])
    if write.name == "dynamic_update_slice":
        return write_window(array, value, [*(0 for _ in rows), *at])
    numbers = numbers_of(write)

    def later(dims: Sequence[int]) -> tuple[int, ...]:
        return tuple(dim + count for dim in dims)

    there = lax.ScatterDimensionNumbers(
        update_window_dims=(*range(count), *later(numbers.update_window_dims)),
        inserted_window_dims=later(numbers.inserted_window_dims),
        scatter_dims_to_operand_dims=later(numbers.scatter_dims_to_operand_dims),
        operand_batching_dims=later(numbers.operand_batching_dims),
        scatter_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    scatter = scattering(write)
    (index,) = at
    return scatter(array, index, value, there, **alike_in_both(write))
