"""Add rows of a gradient to an array in place, scaled one by one, though some may be the same.

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
      s = mul 0.1 u
      v = neg s
      p1 = scatter-add p i v
      yield carry(p1)
    }

A step of gradient descent with a table, and the sum of a table's cotangents. `update-rows` and
`accumulate-sparse-cotangents` do it in the program's order, which has them compare the places of
all rows. Sound, up to rounding, when

1. the array that is added or subtracted is zero but for windows, as in `update-rows`, and so are
   what else may read it, and a scalar that chooses the sum or the array as it was;
2. an unknown scalar is tested in each step, as there.

Cost: the rows instead of the array. Only in loops that carry the array, if nothing reads it
afterwards, so that XLA updates it in place.
Source: `torch.nn.Embedding(sparse=True)`, whose optimizers add rows one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.in_place.descents import Descent, descent, why_not_in_place
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.in_place import descent_rows
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class ScaledRows(Match):
    """A sum with an array that is zero but for rows."""

    descent: Descent


@dataclass(frozen=True)
class AddScaledRows(Pass[ScaledRows]):
    """A carried array plus, or minus, what is zero but for rows -> rows added in place."""

    name: ClassVar[str] = "add-scaled-rows"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"add", "add_any", "sub"})
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while"})

    @property
    def reassociates(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[ScaledRows]:
        if loop_of(op) is None or not dtypes.is_inexact(op.result.dtype):
            return
        pairs = [op.operands] if op.name == "sub" else [op.operands, op.operands[::-1]]
        for array, term in pairs:
            found = descent(op, array, term, summed=True)  # (1)
            if found is not None:
                few = bytes_text(sum(piece.nbytes for piece in found.pieces))
                says = f"{few} are added to {array.label}, not {bytes_text(array.nbytes)}"
                yield ScaledRows(op, says, found, about=op.result)

    def refuse(self, match: ScaledRows) -> str | None:
        found, array = match.descent, match.descent.array
        if (reason := why_not_in_place(found)) is not None:  # (1)
            return reason
        if not cost_model().is_sparse(sum(p.nbytes for p in found.pieces), array.nbytes):
            return f"the rows together are as large as {array.label}"
        return None

    def rewrite(self, match: ScaledRows, rw: Rewriter) -> None:
        found = match.descent
        terms = [descent_rows.new_term(found, piece, rw) for piece in found.pieces]

        def write(array: Value, before: Op) -> Value:
            return descent_rows.with_terms(found, array, terms, before, rw)

        rw.replace(found.last.result, descent_rows.chosen(found, write, rw))  # (2)
        for op in (*reversed(found.choices), found.op):
            rw.erase(op)
