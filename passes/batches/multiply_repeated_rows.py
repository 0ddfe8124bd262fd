"""Multiply rows once that a factor repeats, and the parts of a joined factor apart.

Before::

    b = broadcast_in_dim[dims=(0, 2)] h          # each row, for all that it is paired with
    x = concatenate[dimension=2] b c
    y = dot_general x w

After::

    w1 = slice[:32] w
    p = dot_general h w1
    b = broadcast_in_dim[dims=(0, 2)] p
    w2 = slice[32:] w
    q = dot_general c w2
    y = add b q

What a layer knows of a sequence, of a ray, of a graph or of an agent is often repeated for each
position, sample, neighbour or action, and joined with what is known of that; also row below row, as
by `jnp.repeat`: then the product is first made along the axes that are merged. Sound, up to
rounding, when

1. a factor, or a part of it, is the same along axes that are not multiplied in pairs, or along such
   that are merged in one: its product is that of one row, by the sum of the other factor along
   those axes that are summed up;
2. where a product becomes a sum of several, or rows are summed up first, numbers have as many bits
   as float32: those of bfloat16 would be rounded before they are added;
3. or nothing but parts of a product is read, of which one at least is summed up along axes of one
   factor, as the gradient does for what is repeated: then that factor is summed up first;
4. neither types nor the op say which device holds which rows;
5. or a part of a factor, that is joined for this product only, is read of a table that has fewer
   rows, and nothing else reads it: `map-before-reading` then multiplies the rows of the table.

Where rows are summed up first, infinities are another exception: plain JAX multiplies them by each
number, zeros too, which is NaN; so they do if JAX differentiates what this pass has made.

Cost: fewer multiplications, and parts that are not joined, for products that are started and added.
Of the parts that are the same for no rows, all stay joined: at most one product makes a whole
result, if it is a sum.
Source: additive attention (Bahdanau et al., arXiv:1409.0473) computes what it knows of the source
once; graph attention (Velickovic et al., arXiv:1710.10903) adds two products for each pair;
jraph joins edges and the nodes at both ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.batches.merged_rows import MergedRows, merged_rows
from jaxpr_opt.analysis.batches.repeated_parts import RepeatedParts, repeated_parts
from jaxpr_opt.analysis.batches.summed_parts import SummedParts, summed_parts
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import is_resharded
from jaxpr_opt.builders.batches.merged_rows import multiply_apart
from jaxpr_opt.builders.batches.repeated_parts import multiply_sums, product_of_parts
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedRows(Match):
    """A product of which a part of a factor repeats rows."""

    found: RepeatedParts


@dataclass(frozen=True, slots=True, eq=False)
class SummedRows(Match):
    """A product of which parts are summed up."""

    found: SummedParts


@dataclass(frozen=True, slots=True, eq=False)
class MergedAxes(Match):
    """A product along an axis that is merged of some that repeat rows, or are summed up."""

    found: MergedRows


@dataclass(frozen=True)
class MultiplyRepeatedRows(Pass[RepeatedRows | SummedRows | MergedAxes]):
    """A product of repeated rows -> the product of one of them, repeated; a sum of products of rows
    -> the product of their sum.
    """

    name: ClassVar[str] = "multiply-repeated-rows"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"dot_general"})

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[RepeatedRows | SummedRows | MergedAxes]:
        if not op.result.uses or is_resharded(op):  # (4)
            return
        repeated = repeated_parts(op)  # (1)
        if repeated is not None:
            times = max(repeated.rows(part) for group in repeated.groups for part in group)
            says = f"rows that are repeated {times} times are multiplied once"
            says = says if times > 1 else "a part that is read of a table is multiplied apart"
            yield RepeatedRows(op, says, repeated, about=op.operands[repeated.position])
        summed = summed_parts(op)  # (3)
        if summed is not None:
            yield SummedRows(op, "rows are summed up, then multiplied", summed, about=op.result)
        merged = merged_rows(op)  # (1, 3)
        if merged is not None:
            sizes = " x ".join(map(str, merged.sizes))
            yield MergedAxes(op, f"rows are multiplied as {sizes}", merged, about=op.result)

    def refuse(self, match: RepeatedRows | SummedRows | MergedAxes) -> str | None:
        found, product, dtype = match.found, match.op, match.op.result.dtype
        is_added = found.is_added or found.summed > 0
        if is_added and not dtypes.is_widened("float32", dtype):  # (2)
            return f"numbers of {dtype} would be rounded before they are added"
        how = found.multiplied, found.results, found.summed, found.unmade
        if not cost_model().is_less_in_parts(product, *how):
            return "multiplying all rows takes no longer"
        return None

    def rewrite(self, match: RepeatedRows | SummedRows | MergedAxes, rw: Rewriter) -> None:
        found = match.found
        if isinstance(found, SummedParts):
            multiply_sums(found, rw)
            return
        if isinstance(found, MergedRows):
            made = multiply_apart(found, rw)
        else:
            made = product_of_parts(found, rw)
        rw.replace(match.op.result, made)
        rw.erase(match.op)
