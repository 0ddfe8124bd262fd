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
   numbers, added in the order of the rows. Those of several scatters, one after the other, are of
   one form. Two of a row are a known distance apart, not less than their size, and in range where
   they would be clamped; or they are single places, and the program compares them: what a later
   one adds to the same place is then added to the earlier one's window.

Facts about the indices of a batch (sorted, unique) need not hold across rows, and are dropped.

Cost: one table instead of one for each row.
Source: https://github.com/jax-ml/jax/issues/8409, of a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.windows.places_apart import are_alike, are_single_places, may_coincide
from jaxpr_opt.analysis.windows.scatter_chains import Piece
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import axes_of, broadcast_dimensions_of, numbers_of
from jaxpr_opt.builders.shared_tables import read_of_one, sum_in_one, without
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
    """A sum, over batch axes, of what scatters add to zeros."""

    scatters: tuple[Op, ...]
    """First to last, each to what the one before it made."""
    axes: tuple[int, ...]


@dataclass(frozen=True)
class ShareBatchedTables(Pass[SharedRead | SharedSum]):
    """Copies of a table, one for each row of a batch -> the table."""

    name: ClassVar[str] = "share-batched-tables"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"gather", "reduce_sum"})
    needs: ClassVar[frozenset[str]] = frozenset({"gather", "scatter-add"})

    def find(self, op: Op) -> Iterator[SharedRead | SharedSum]:
        source = op.operands[0].op
        if op.name == "gather" and source is not None and source.name == "broadcast_in_dim":
            (table,) = source.operands
            kept = broadcast_dimensions_of(source)
            axes = tuple(a for a in range(len(source.result.shape)) if a not in kept)
            is_batch = set(axes) <= set(numbers_of(op).operand_batching_dims)
            if is_batch and table.shape == without(source.result.shape, axes):  # (1)
                says = f"all rows read the same {bytes_text(table.nbytes)}, not a copy each"
                yield SharedRead(op, says, table, axes, about=op.operands[0])
        if op.name == "reduce_sum" and source is not None and source.name == "scatter-add":
            axes = tuple(axes_of(op))
            if set(axes) <= set(numbers_of(source).operand_batching_dims):  # (2)
                one = bytes_text(op.result.nbytes)
                says = f"all rows add to the same {one}, not each to its own"
                yield SharedSum(op, says, _in_a_row(source), axes, about=source.result)

    def refuse(self, match: SharedRead | SharedSum) -> str | None:
        if isinstance(match, SharedRead):
            return None
        first, *others = match.scatters
        base = first.operands[0]
        if uniform(base) != 0:  # (2)
            return f"{base.label} is not zero"
        for each in match.scatters:
            if len(each.result.uses) > 1:  # (2)
                return f"{each.result.label} is read elsewhere"
        if any(not are_alike(first, each) for each in others):  # (3)
            return "windows of several forms are added"
        is_told = not may_coincide(match.scatters) or are_single_places(first)
        is_once = is_told and not any(map(_repeats, match.scatters))
        if not dtypes.is_integer(base.dtype) and not (is_once and _is_in_order(match)):  # (3)
            return "windows of a row may overlap, and the order of the sum would change"
        return None

    def rewrite(self, match: SharedRead | SharedSum, rw: Rewriter) -> None:
        op = match.op
        if isinstance(match, SharedRead):
            read = read_of_one(op, match.axes)
            new = rw.typed(read, op.result.aval, match.table, op.operands[1], before=op)
        else:
            add = sum_in_one(match.scatters, match.axes)
            given = [v for each in match.scatters for v in each.operands[1:]]
            new = rw.typed(add, op.result.aval, *given, before=op)
        rw.replace(op.result, new)
        rw.erase(op)


def _in_a_row(last: Op) -> tuple[Op, ...]:
    """The scatters that add to what another made, up to one."""
    found = [last]
    while (op := found[-1].operands[0].op) is not None and op.name == last.name:
        found.append(op)
    return tuple(reversed(found))


def _repeats(scatter: Op) -> bool:
    """Whether two windows of a row may be one."""
    base, index, update = scatter.operands
    return Piece(scatter, base, update, (index,)).repeats


def _is_in_order(match: SharedSum) -> bool:
    """Whether rows of the index are in the order of the axes that are summed over (3)."""
    numbers = numbers_of(match.scatters[0])
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    places = [place for axis, place in sorted(pairs) if axis in match.axes]
    return places == sorted(places)
