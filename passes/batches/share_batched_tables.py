"""Read one table from all rows of a batch, not a copy for each.

Before::

    b = broadcast_in_dim[dims=(1, 2)] table      # a copy for each row
    g = gather[operand_batching_dims=(0,)] b i

After::

    g = gather table i

`vmap` of a `cond` passes a copy of everything the branches read to each row of the batch. Sound
when

1. along the removed axis the table is repeated, and the gather takes the batch row of its own
   index;
2. types do not say which device holds which rows: JAX would ask where those of the result are.

Facts about the indices of a batch (sorted, unique) need not hold across rows, and are dropped.

Cost: one table instead of one for each row.
Source: https://github.com/jax-ml/jax/issues/8409, of a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.bridge.parameters import broadcast_dimensions_of, numbers_of
from jaxpr_opt.builders.batches.shared_tables import read_of_one, without
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class SharedRead(Match):
    """A gather of a table that is repeated along batch axes."""

    table: Value
    axes: tuple[int, ...]


@dataclass(frozen=True)
class ShareBatchedTables(Pass[SharedRead]):
    """Copies of a table, one for each row of a batch -> the table."""

    name: ClassVar[str] = "share-batched-tables"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"gather"})

    def find(self, op: Op) -> Iterator[SharedRead]:
        source = op.operands[0].op
        if source is None or source.name != "broadcast_in_dim":
            return
        (table,) = source.operands
        kept = broadcast_dimensions_of(source)
        axes = tuple(a for a in range(len(source.result.shape)) if a not in kept)
        is_batch = set(axes) <= set(numbers_of(op).operand_batching_dims)
        if any(map(is_sharded, (*op.operands, op.result))):  # (2)
            return
        if is_batch and table.shape == without(source.result.shape, axes):  # (1)
            says = f"all rows read the same {bytes_text(table.nbytes)}, not a copy each"
            yield SharedRead(op, says, table, axes, about=op.operands[0])

    def rewrite(self, match: SharedRead, rw: Rewriter) -> None:
        op = match.op
        read = read_of_one(op, match.axes)
        new = rw.typed(read, op.result.aval, match.table, op.operands[1], before=op)
        rw.replace(op.result, new)
        rw.erase(op)
