"""Reduce the rows that are added to zeros, not the whole array.

Before::

    z = broadcast_in_dim 0.0
    g = scatter-add z i u                  # the gradient of a table: zero but for rows
    f = is_finite g
    r = reduce_and f                       # of all elements

After::

    t = ...                                # u, added up where two rows are the same
    f = is_finite t
    a = reduce_and f
    r = and a (is_finite 0.0)

Whether a gradient is finite, its largest element, how many elements are not zero; and, as that is a
sum, under `optimize(reassociate=True)` the norm by which it is clipped. Sound when

1. the array is zero but for windows in it that are equal or disjoint: each sums all that belongs to
   its row, in the order of the rows, as the array does;
2. what is reduced is made element by element, of that array and of scalars, by pure ops: what they
   make of a zero is made once;
3. there are zeros in any case: the windows are fewer than the array has room for;
4. all elements are reduced to one, by an op that takes them in any order, and one of them several
   times: the greatest, the least, and truth values. Or by a sum, which counts each row once:
   exactly that of integers, up to rounding others.

Cost: the rows instead of the array, which nothing may need any more (`update-rows`). Only in the
final phase: the gradient of what is selected from rows takes more ops.
Source: `optax.apply_if_finite`, `optax.clip_by_global_norm`, and loss scaling, of embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import ClassVar, Literal

from jaxpr_opt.analysis.sparse.disjoint_pieces import apart
from jaxpr_opt.analysis.sparse.made_of_rows import MadeOfRows, made_of_rows
from jaxpr_opt.analysis.sparse.scatter_chains import PIECES, SCATTERS
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import axes_of
from jaxpr_opt.builders.sparse.reduced_rows import reduced
from jaxpr_opt.builders.sparse.repeated_rows import has_rows, is_less
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Phase
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import PICKING
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class ReducedRows(Match):
    """A reduction of what is made of zeros but for rows."""

    made: MadeOfRows


@dataclass(frozen=True)
class ReduceAddedRows(Pass[ReducedRows]):
    """A reduction of zeros with rows in them -> the reduction of the rows."""

    by: Literal["exact", "all"] = "exact"
    """By which ops: those that take elements in any order, or also by sums that are rounded."""

    name: ClassVar[str] = "reduce-added-rows"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = PICKING | {"reduce_sum"}
    needs: ClassVar[frozenset[str]] = PIECES

    @property
    def reassociates(self) -> bool:
        return self.by == "all"

    def find(self, op: Op) -> Iterator[ReducedRows]:
        if len(axes_of(op)) < len(op.operands[0].shape) or not self._is_taken(op):  # (4)
            return
        made = made_of_rows(op.operands[0])
        if made is not None:
            few = bytes_text(sum(piece.nbytes for piece in made.pieces))
            says = f"{few} of {made.dense.label} are reduced, not {bytes_text(made.dense.nbytes)}"
            yield ReducedRows(op, says, made, about=op.result)

    def _is_taken(self, op: Op) -> bool:
        """Whether the result is the same in any order, or may be another."""
        is_sum = op.name == "reduce_sum"
        return self.reassociates or not is_sum or not dtypes.is_inexact(op.result.dtype)

    def refuse(self, match: ReducedRows) -> str | None:
        made = match.made
        if not all(piece.op.name in SCATTERS for piece in made.pieces):  # (1)
            return "XLA reduces the array as it makes the windows"
        if not all(map(has_rows, made.pieces)):  # (1)
            return "windows may overlap in part"
        for one, two in combinations(made.pieces, 2):
            if not apart(one.window, two.window):  # (1)
                return "windows of two ops may overlap"
        if sum(prod(p.update.shape) for p in made.pieces) >= prod(made.dense.shape):  # (3)
            return f"the windows may be all of {made.dense.label}"
        if not is_less([[piece] for piece in made.pieces], made.dense.nbytes):
            return f"the rows together are as large as {made.dense.label}"
        model = cost_model()
        if not model.outlasts(made.dense.nbytes, model.started_for_rows(len(made.pieces))):
            return "all elements are reduced as fast as the ops for rows are started"
        return None

    def rewrite(self, match: ReducedRows, rw: Rewriter) -> None:
        rw.replace(match.op.result, reduced(match.op, match.made, rw))
        rw.erase(match.op)
