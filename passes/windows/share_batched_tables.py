"""Read one table from all rows of a batch, not a copy for each, and add to one.

Before::

    b = broadcast_in_dim[dims=(1, 2)] table      # a copy for each row
    g = gather[operand_batching_dims=(0,)] b i
    z = broadcast_in_dim 0.0
    s = scatter-add[operand_batching_dims=(0,)] z i u
    r = reduce_sum[axes=(0,)] s

After::

    g = gather table i
    z1 = broadcast_in_dim 0.0
    r = scatter-add z1 i u

`vmap` of a `cond` passes a copy of everything the branches read to each row of the batch, and its
transpose adds up the cotangents of the copies. Sound when

1. along the removed axis the table is repeated, and the gather takes the batch row of its own
   index;
2. the removed axes are all that is summed over, the scatter adds to zeros, and no other op reads
   it;
3. no two windows of one row overlap, unless integers are added: then each element gets the same
   numbers, added in the order of the rows.

Facts about the indices of a batch (sorted, unique) need not hold across rows, and are dropped.

Cost: one table instead of one for each row.
Source: https://github.com/jax-ml/jax/issues/8409, of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.windows.scatter_chains import Piece
from jaxpr_opt.analysis.windows.window_primitives import mirrored
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    axes_of,
    broadcast_dimensions_of,
    fill_value_of,
    mode_of,
    numbers_of,
    slice_sizes_of,
)
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class SharedRead(Match):
    """A gather of a table that is repeated along batch axes."""

    table: Value
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SharedSum(Match):
    """A sum, over batch axes, of what a scatter adds to zeros."""

    scatter: Op
    axes: tuple[int, ...]


@dataclass(frozen=True)
class ShareBatchedTables(Pass):
    """Copies of a table, one for each row of a batch -> the table."""

    name: ClassVar[str] = "share-batched-tables"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"gather", "reduce_sum"})
    needs: ClassVar[frozenset[str]] = frozenset({"gather", "scatter-add"})

    def find(self, op: Op) -> Iterator[Match]:
        source = op.operands[0].op
        if op.name == "gather" and source is not None and source.name == "broadcast_in_dim":
            (table,) = source.operands
            kept = broadcast_dimensions_of(source)
            axes = tuple(a for a in range(len(source.result.shape)) if a not in kept)
            is_batch = set(axes) <= set(numbers_of(op).operand_batching_dims)
            if is_batch and table.shape == _without(source.result.shape, axes):  # (1)
                says = f"all rows read the same {bytes_text(table.nbytes)}, not a copy each"
                yield SharedRead(op, says, table, axes, about=op.operands[0])
        if op.name == "reduce_sum" and source is not None and source.name == "scatter-add":
            axes = tuple(axes_of(op))
            if set(axes) <= set(numbers_of(source).operand_batching_dims):  # (2)
                one = bytes_text(op.result.nbytes)
                says = f"all rows add to the same {one}, not each to its own"
                yield SharedSum(op, says, source, axes, about=source.result)

    def refuse(self, match: Match) -> str | None:
        if isinstance(match, SharedRead):
            return None
        assert isinstance(match, SharedSum)
        base, index, update = match.scatter.operands
        if uniform(base) != 0:  # (2)
            return f"{base.label} is not zero"
        if len(match.scatter.result.uses) > 1:  # (2)
            return f"{match.scatter.result.label} is read elsewhere"
        is_exact = dtypes.is_integer(base.dtype)
        piece = Piece(match.scatter, base, update, (index,))
        if not is_exact and (piece.repeats or not _is_in_order(match)):  # (3)
            return "windows of a row may overlap, and the order of the sum would change"
        return None

    def rewrite(self, match: Match, rw: Rewriter) -> None:
        op = match.op
        if isinstance(match, SharedRead):
            read = _gather(op, match.axes)
            new = rw.typed(read, op.result.aval, match.table, op.operands[1], before=op)
        else:
            assert isinstance(match, SharedSum)
            _, index, update = match.scatter.operands
            add = _scatter(match.scatter, match.axes)
            new = rw.typed(add, op.result.aval, index, update, before=op)
        rw.replace(op.result, new)
        rw.erase(op)


def _is_in_order(match: SharedSum) -> bool:
    """Whether rows of the index are in the order of the axes that are summed over (3)."""
    numbers = numbers_of(match.scatter)
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    places = [place for axis, place in sorted(pairs) if axis in match.axes]
    return places == sorted(places)


def _gather(op: Op, axes: Sequence[int]) -> Any:
    """The same read of a table without some batch axes."""
    numbers = _unbatched(numbers_of(op), axes)
    sizes = _without(slice_sizes_of(op), axes)
    mode, filler = mode_of(op), fill_value_of(op)

    def read(table: jax.Array, index: jax.Array) -> jax.Array:
        return lax.gather(table, index, numbers, sizes, mode=mode, fill_value=filler)

    return read


def _scatter(op: Op, axes: Sequence[int]) -> Any:
    """The same additions, to zeros without some batch axes."""
    array = op.operands[0]
    shape, mode = _without(array.shape, axes), mode_of(op)
    where = _unbatched(mirrored(op), axes)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=where.offset_dims,
        inserted_window_dims=where.collapsed_slice_dims,
        scatter_dims_to_operand_dims=where.start_index_map,
        operand_batching_dims=where.operand_batching_dims,
        scatter_indices_batching_dims=where.start_indices_batching_dims,
    )

    def add(index: jax.Array, update: jax.Array) -> jax.Array:
        zeros = lax.full(shape, 0, array.dtype)
        return lax.scatter_add(zeros, index, update, numbers, mode=mode)

    return add


def _without(sizes: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for axis, n in enumerate(sizes) if axis not in axes)


def _unbatched(
    numbers: lax.GatherDimensionNumbers, axes: Sequence[int]
) -> lax.GatherDimensionNumbers:
    """Where windows are in an array without some of its batch axes."""

    def moved(kept: Sequence[int]) -> tuple[int, ...]:
        return tuple(axis - sum(gone < axis for gone in axes) for axis in kept)

    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    left = [(axis, place) for axis, place in pairs if axis not in axes]
    return lax.GatherDimensionNumbers(
        offset_dims=numbers.offset_dims,
        collapsed_slice_dims=moved(numbers.collapsed_slice_dims),
        start_index_map=moved(numbers.start_index_map),
        operand_batching_dims=moved([axis for axis, _ in left]),
        start_indices_batching_dims=tuple(place for _, place in left),
    )
