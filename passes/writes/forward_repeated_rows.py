"""Read back rows that were just written, some perhaps several times, from the rows alone.

Before::

    s = scatter z i rows                    # z has as many rows as a table
    g = gather s i

After::

    first = ...                             # for each place, which is the first like it
    t = scatter 0 first rows                # as many rows as places
    g = gather t first

``x.at[i].set(u)`` is differentiated by numbers that JAX writes to zeros at the same places, and
reads back: which of several writes to one place came last. So each step of a loop that writes some
rows of a memory, of a cache of keys, of a table of states, fills an array as large as that. Sound
when

1. the windows that are read are those that were written: their indices, and how these are meant;
2. the read promises that they are in range: what it makes of others is not specified. Where the
   write drops them, JAX drops what it makes of them, too;
3. any two windows are equal or disjoint, so that equal ones have one row for them all;
4. XLA writes one row after the other, so that of equal places the same is written last in an array
   of any size: on a CPU it does (measured for 2 to 4096 rows).

Cost: finding places that are the same, and five ops, not filling the array; nothing else reads it.
Source: `_scatter_jvp` in jax/_src/lax/slicing.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from jax import lax

from jaxpr_opt.analysis.sparse.scatter_chains import Piece
from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.analysis.windows.window_primitives import mirrored, window_sizes
from jaxpr_opt.bridge.parameters import combiner_of, mode_of, numbers_of, slice_sizes_of
from jaxpr_opt.builders.sparse.repeated_rows import has_rows, is_less, last_by_row
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.devices import is_sharded, writes_in_order
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class RowsReadBack(Match):
    """A gather of what a scatter has written."""

    piece: Piece


@dataclass(frozen=True)
class ForwardRepeatedRows(Pass[RowsReadBack]):
    """Gather of just the rows that a scatter wrote -> those rows, the last of each place."""

    name: ClassVar[str] = "forward-repeated-rows"
    after: ClassVar[tuple[After, ...]] = (
        After("write-where-masked", "what compares all of the array needs it no more"),
    )
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"gather"})

    def find(self, op: Op) -> Iterator[RowsReadBack]:
        array, index = op.operands
        write = array.op
        if write is None or write.name != "scatter" or combiner_of(write) is not None:
            return
        if write.region is not op.region:  # in a loop, each step would compare the places
            return
        if _is_read_back(op, write):  # (1)
            piece = Piece(write, write.operands[0], write.operands[2], (index,))
            few = bytes_text(piece.nbytes)
            says = f"rows are read back from the {few} written, not from {bytes_text(array.nbytes)}"
            yield RowsReadBack(op, says, piece, about=array)

    def refuse(self, match: RowsReadBack) -> str | None:
        op, piece = match.op, match.piece
        if mode_of(op) != lax.GatherScatterMode.PROMISE_IN_BOUNDS:
            return "rows out of range are clamped or filled, not left unspecified"  # (2)
        if not has_rows(piece):
            return "windows may overlap in part"  # (3)
        if not writes_in_order():
            return "it is not known which of equal places is written last"  # (4)
        if any(map(is_sharded, op.operands)):
            return "the array may be divided over devices"
        if len(piece.result.uses) > 1:
            return f"{piece.result.label} is read elsewhere"
        if not is_less([[piece]], piece.result.nbytes):
            return f"finding equal places takes as long as filling {piece.result.label}"
        if cost_model().moved(piece.result.nbytes) < cost_model().started_for_rows(1):
            return f"{piece.result.label} is filled as fast as the ops for rows are started"
        return None

    def rewrite(self, match: RowsReadBack, rw: Rewriter) -> None:
        op, piece = match.op, match.piece
        rows = partial(last_by_row, piece)
        new = rw.typed(rows, op.result.aval, *piece.indices, piece.update, before=op)
        rw.replace(op.result, new)
        rw.erase(op)


def _is_read_back(read: Op, write: Op) -> bool:
    """Whether a gather reads the windows that a scatter wrote, as it wrote them."""
    given = numbers_of(read), tuple(slice_sizes_of(read))
    alike = given == (mirrored(write), window_sizes(write))
    return alike and same_expression(read.operands[1], write.operands[1], {})
