"""Read rows that may just have been written, or added to, without the array.

Before::

    s = scatter-add t i u           # as many rows as a table: a gradient, a step of descent
    g = gather s j

After::

    r = gather t j                  # as many rows as places in j
    ...                             # for each place in i, the first in j like it, or none
    a = scatter-add r slots u
    g = gather a first              # of places that are the same, the first

A table of which a program reads rows, moves them by a gradient and reads rows again is made as a
whole each time, if that is not in a loop that carries it: the inner steps of meta-learning, few
steps of fine-tuning and then a test, pushes along the edges of a graph. Under `vmap` each task has
a table. And ``x.at[i].set(u)`` is differentiated by numbers that JAX writes to zeros at the same
places, and reads back: which of several writes to one place came last. Sound when

1. all that reads the array are gathers of windows of the form that was written, with places of the
   same type, which holds all of them; any two windows are equal or disjoint;
2. a read that clamps its places, or promises that they are in range, reads the row at the edge; if
   it fills, a number. A write that is out of range is dropped, unless it is clamped. The derivative
   of what breaks its promise is not specified;
3. rows are added in the order of the scatter. So they are written, where XLA writes one row after
   the other: on a CPU it does (measured for 2 to 4096 rows), so that of equal places the same is
   written last in an array of any size.

Cost: finding places that are the same, and five ops for each read, not filling or copying the
array; nothing else reads it. Four inner steps take 0.1 of the time and none of the memory (30000
rows; 8 tasks under `vmap` 0.01), the gradient 0.2. An array that was made before, and that nothing
else reads, is written in place: then it is not spared. In a loop after the array, each step would
compare the places.
Source: sparse gradients of embeddings in the inner loop of MAML (Finn et al., arXiv:1703.03400);
`_scatter_jvp` in jax/_src/lax/slicing.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.sparse.scatter_chains import SCATTERS, may_coincide
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import combiner_of
from jaxpr_opt.builders.writes.written_rows import WrittenRows, reads_of_rows
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.devices import is_sharded, writes_in_order
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class RowsReadBack(Match):
    """A scatter, and gathers of the rows of what it makes."""

    reads: tuple[WrittenRows, ...]


@dataclass(frozen=True)
class ForwardRepeatedRows(Pass[RowsReadBack]):
    """Gathers of rows of what a scatter made -> gathers of rows as they were, scattered to."""

    name: ClassVar[str] = "forward-repeated-rows"
    after: ClassVar[tuple[After, ...]] = (
        After("write-where-masked", "what compares all of the array needs it no more"),
    )
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = SCATTERS

    def find(self, op: Op) -> Iterator[RowsReadBack]:
        reads = tuple(reads_of_rows(op))  # (1)
        if (
            reads
            and dtypes.is_array(op.result.dtype)
            and (op.name == "scatter-add" or combiner_of(op) is None)
        ):
            few = bytes_text(sum(each.read.result.nbytes for each in reads))
            says = f"{few} of rows are read, not made with all {bytes_text(op.result.nbytes)}"
            yield RowsReadBack(op, says, reads, about=op.result)

    def refuse(self, match: RowsReadBack) -> str | None:
        op, reads, model = match.op, match.reads, cost_model()
        array, _, update = op.operands
        label, nbytes = op.result.label, op.result.nbytes
        if op.name == "scatter" and may_coincide(op) and not writes_in_order():
            return "it is not known which of equal places is written last"  # (3)
        if any(map(is_sharded, (*op.operands, *(each.read.operands[1] for each in reads)))):
            return "the array may be divided over devices"
        if len(op.result.uses) > len(reads):
            return f"{label} is read elsewhere"
        if any(each.read.region is not op.region for each in reads):
            return f"{label} is read in a loop or a branch"
        if len(reads) > limits.READS_OF_ROWS:
            return f"rows of {label} are read at many places"
        if not _is_spared(array):
            return f"{array.label} is written in place"
        moved = sum(each.read.result.nbytes + update.nbytes for each in reads)
        found = sum(each.seconds for each in reads)
        if not model.is_sparse(moved, nbytes) or found > model.moved(nbytes):
            return f"finding equal places takes as long as filling {label}"
        if model.moved(nbytes) < model.started_for_rows(len(reads)):
            return f"{label} is filled as fast as the ops for rows are started"
        return None

    def rewrite(self, match: RowsReadBack, rw: Rewriter) -> None:
        for each in match.reads:
            read = each.read
            new = rw.typed(each.rows, read.result.aval, *each.operands, before=read)
            rw.replace(read.result, new)
            rw.erase(read)


def _is_spared(array: Value) -> bool:
    """Whether an array to which rows are written is copied, or filled, for that only."""
    op = array.op
    if op is None or uniform(array) is not None or cost_model().is_made_where_read(op):
        return True
    return op.name in SCATTERS and _is_spared(op.operands[0])
