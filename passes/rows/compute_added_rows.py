"""Compute only the rows that are added to zeros, of all that is made of these row by row.

Before::

    z = broadcast_in_dim 0.0
    c = scan[4, reverse] carry(c=z) xs(i=is, g=gs) {
      r = dynamic_slice c i 0
      a = add r g
      d = dynamic_update_slice c a i 0
      yield carry(d)
    }
    m = mul c t
    w = dot_general[contract=0x0] x m         # x, t: of all rows

After::

    rows = gather t is
    m = mul gs rows
    part = gather x is
    w = dot_general[contract=0x0] part m

A loop, or a read, that needs some rows of what is computed row by row has a gradient that is zero
in all other rows. What transposes the ops multiplies the zeros, too, and sums them up. Sound, up to
rounding, when

1. the array is zeros to which rows are added: by writes into zeros, by scatters, by the steps of
   loops that do not read it otherwise; or elements at several places, by one scatter;
2. what is made of it is linear, and each row depends on one row of it, or it is summed up over the
   rows; so on (`jaxpr_opt.analysis.rows.added_rows`, and `added_points` for elements, of which each
   contributes by itself). What else is read of it is an array with these rows;
3. a product is one of a cotangent, whose zeros are symbolic: JAX itself makes nothing of them where
   it knows that they are there. The terms of a sum are multiplied one by one, which must not
   overflow where the sum does not: numbers are as large as those of float32.

Cost: the rows instead of the array, for something that XLA does not compute where it is read: a
product, or a sum. They are few, and take clearly less time. Where JAX differentiates what
`compute-read-rows` has made of the forward pass, there are no zeros.
Source: Shaikhha et al., "Efficient Differentiable Programming in a Functional Array-Processing
Language", arXiv:1806.02136 (what a dense one-hot cotangent costs).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.rows.added_points import AddedPoints, added_points
from jaxpr_opt.analysis.rows.added_rows import AddedRows, added_rows
from jaxpr_opt.analysis.sparse.scatter_chains import PIECES
from jaxpr_opt.builders.rows.added_points import compute_points
from jaxpr_opt.builders.rows.added_rows import compute_rows
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS


@dataclass(frozen=True, slots=True, eq=False)
class RowsInZeros(Match):
    """An array that is zero but for rows, or elements, and what is made of it."""

    found: AddedRows | AddedPoints


@dataclass(frozen=True)
class ComputeAddedRows(Pass[RowsInZeros]):
    """Ops on zeros with rows in them -> ops on the rows."""

    name: ClassVar[str] = "compute-added-rows"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = PIECES | SUMS | {"scan"}
    needs: ClassVar[frozenset[str]] = PIECES | {"scan"}

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[RowsInZeros]:
        for array in op.results:
            found = added_rows(array) or added_points(array)  # (1, 2, 3)
            if found is not None:
                made = [o.name for o in found.ops if not cost_model().is_made_where_read(o)]
                if made:
                    rows = "rows" if isinstance(found, AddedRows) else "elements"
                    says = f"{', '.join(made)}: of the {rows} that are added to zeros only"
                    yield RowsInZeros(op, says, found, about=array)

    def refuse(self, match: RowsInZeros) -> str | None:
        found, model = match.found, cost_model()
        part, label = found.part, found.array.label
        if not model.is_sparse(part, 1):
            return f"most rows of {label} are added"
        if isinstance(found, AddedPoints):
            whole = model.repeated(found.ops) + model.moved(found.array.nbytes)
            rows = model.elements_computed(found.parts, found.points, found.windows, set())
            is_longer = model.is_most(rows, whole)
            return f"adding what each makes takes as long as all of {label}" if is_longer else None
        whole, rows = (model.rows_computed(dict.fromkeys(found.ops, n), 0) for n in (1.0, part))
        if not found.is_one_window and model.is_most(rows, whole):
            return f"computing the rows takes as long as computing all of {label}"
        return None

    def rewrite(self, match: RowsInZeros, rw: Rewriter) -> None:
        if isinstance(match.found, AddedPoints):
            compute_points(match.found, rw)
        else:
            compute_rows(match.found, rw)
