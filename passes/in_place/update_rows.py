"""Update only the rows where a gradient is nonzero, instead of the whole array.

Before::

    p_n = scan[n] carry(p=p_0) xs(i=is, ...) {
      u = ...
      z = broadcast_in_dim 0.0
      g = scatter-add z i u                  # the gradient: zero but for rows
      s = mul 0.1 g
      p1 = sub p s
      yield carry(p1)
    }

After::

    p_n = scan[n] carry(p=p_0) xs(i=is, ...) {
      u = ...
      t = ...                                # u, added up where two rows are the same
      s = mul 0.1 t
      r = gather p i
      d = sub r s
      p1 = scatter p i d
      yield carry(p1)
    }

A step of gradient descent with a table. Sound when

1. the array that is added or subtracted is zero but for windows
   (`jaxpr_opt.analysis.in_place.descents`), through ops that keep zeros: products with
   scalars, quotients by them, and what numbers that are known make zero of zero, as in
   ``clip(g, -1, 1)``; what else reads the intermediate arrays reduces them, as a norm does. The
   sum, or the array as it was, may be chosen by a scalar: then so are the rows. In place of a
   scalar there may be a number for each array of a batch, or for each column: what is the same
   along the axes along which windows have places;
2. such a number that is unknown may be NaN or infinite, and make NaN of zeros: each step tests for
   that, and if so, sets all other elements to the result;
3. windows of one op are equal or disjoint: then each sums all that belongs to its row, in the order
   of the rows, and equal rows get equal writes;
4. windows of several ops are disjoint.

Cost: the rows instead of the array. Only in loops that carry the array, or of an argument, if
nothing reads it afterwards, so that XLA updates it in place; and in the final phase, because the
gradient of a write that replaces rows takes two ops. An argument that is not donated is copied
first: 0.5 to 0.8 of the time (1 to 13 MB), and 0.1 if it is.
Source: sparse gradients of embeddings, as `torch.nn.Embedding(sparse=True)` has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from jaxpr_opt.analysis.in_place.descents import Descent, descent, why_not_in_place
from jaxpr_opt.analysis.sparse.disjoint_pieces import apart
from jaxpr_opt.analysis.sparse.scatter_chains import PIECES
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.builders.in_place import descent_rows
from jaxpr_opt.builders.sparse.repeated_rows import has_rows, is_less
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_quick_if_small
from jaxpr_opt.ir.graph import Op, Phase, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class SparseRowsUpdate(Match):
    """A step of gradient descent."""

    descent: Descent


@dataclass(frozen=True)
class UpdateRows(Pass[SparseRowsUpdate]):
    """A carried array plus, or minus, what is zero but for rows -> its rows updated."""

    name: ClassVar[str] = "update-rows"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = frozenset({"add", "add_any", "sub"})
    needs: ClassVar[frozenset[str]] = PIECES

    def find(self, op: Op) -> Iterator[SparseRowsUpdate]:
        pairs = [op.operands] if op.name == "sub" else [op.operands, op.operands[::-1]]
        for array, term in pairs:
            found = descent(op, array, term)
            if found is not None and found.path:
                few = bytes_text(sum(piece.nbytes for piece in found.pieces))
                says = f"{few} of {array.label} are updated, not {bytes_text(array.nbytes)}"
                yield SparseRowsUpdate(op, says, found, about=op.result)

    def refuse(self, match: SparseRowsUpdate) -> str | None:
        found, array = match.descent, match.descent.array
        for piece in found.pieces:
            if piece.repeats and not has_rows(piece):  # (3)
                return "windows may overlap in part"
        for one, two in combinations(found.pieces, 2):
            if not apart(one.window, two.window):  # (4)
                return "windows of two ops may overlap"
        if (reason := why_not_in_place(found)) is not None:  # (1)
            return reason
        is_once = loop_of(match.op) is None
        nbytes = cost_model().more_than_a_copy(array.nbytes) if is_once else array.nbytes
        if not is_less([[piece] for piece in found.pieces], nbytes):
            return f"the rows together are as large as {array.label}"
        is_large = cost_model().outlasts(nbytes, cost_model().started_for_rows(len(found.pieces)))
        if (is_once or is_quick_if_small()) and not is_large:
            return "all elements are added as fast as the ops for rows are started"
        return None

    def rewrite(self, match: SparseRowsUpdate, rw: Rewriter) -> None:
        found = match.descent
        rows = [descent_rows.new_row(found, piece, rw) for piece in found.pieces]

        def write(array: Value, before: Op) -> Value:
            return descent_rows.with_rows(found, array, rows, before, rw)

        rw.replace(found.last.result, descent_rows.updated(found, write, rw))  # (2)
        for op in (*reversed(found.choices), found.op):
            rw.erase(op)
