"""Add up rows that belong to one row of a table before they are mapped, not after.

Before::

    x = gather h senders                 # 4000 rows of the 400 of h
    dw = dot_general[contract=0x0] x g   # g: a cotangent for each
    r = dot_general[contract=1x1] g w
    dh = scatter-add z senders r

After::

    s = scatter-add z senders g          # 400 rows
    dw = dot_general[contract=0x0] h s
    dh = dot_general[contract=1x1] s w

It is what JAX makes of the gradient where `map-before-reading` was done by hand: the cotangents of
all that a row was read for are summed up, and then multiplied and normalised once. So are messages
along edges that are multiplied before they are summed up. Sound, up to rounding, when

1. scatters add whole rows along one axis of arrays, and gathers read such rows of tables, all at
   the same places, in the same way;
2. what is summed up is linear in rows, one for each place, and made row by row of these, of what is
   the same for all rows, and of what is made row by row of what is read of the tables;
3. it is added at these places, or summed up over all of them, alone or multiplied with what is made
   of the tables;
4. numbers have as many bits as float32: those of bfloat16 would be rounded before they are added;
5. rows of tables that are at no place are replaced by one that is, as they may be infinite, and are
   no part of the sum in plain JAX; at no place zero is added.

Cost: fewer rows of products and of functions of numbers, for sums of what they are made of, and a
mask of the rows that are at a place. It takes no more memory than what is no longer made.
Source: as `map-before-reading`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.rows.summed_rows import SummedRows, summed_rows
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.rows.summed_rows import sum_first
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Phase
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class SumsOfRows(Match):
    """Sums of what is made of rows, of which several belong to one row of a table."""

    found: SummedRows


@dataclass(frozen=True)
class AddBeforeMapping(Pass[SumsOfRows]):
    """Sums of ops on rows -> ops on sums of rows."""

    name: ClassVar[str] = "add-before-mapping"
    phase: ClassVar[Phase] = "differentiated"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"gather", "scatter-add"})

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[SumsOfRows]:
        found = summed_rows(op)  # (1, 2, 3)
        if found is not None:
            ops = [each for each in (*found.ops, *found.sums) if cost_model().is_function(each)]
            made = [each.name for each in ops if each.name != "scatter-add"]
            if made:
                says = f"{', '.join(made)}: of sums, for each of {found.rows.at.rows} rows"
                yield SumsOfRows(op, says, found, about=next(iter(found.leaves)))

    def refuse(self, match: SumsOfRows) -> str | None:
        found, model, at = match.found, cost_model(), match.found.rows.at
        made = [*found.leaves, *(op.result for op in found.ops)]
        narrow = next((v for v in made if not dtypes.is_widened("float32", v.dtype)), None)
        if narrow is not None:  # (4)
            return f"numbers of {narrow.dtype} would be rounded before they are added"
        unread = found.unread
        rows = [op.result for op in unread if not model.is_made_where_read(op)]
        rows += [op.operands[2] for op in found.sums if op.name == "scatter-add"]
        spared = sum(v.nbytes for v in dict.fromkeys(rows))
        added = sum(v.nbytes for v in found.leaves)
        if at.share * added > spared:
            return "the sums take more memory"
        products = [op for op in (*unread, *found.sums) if op.name != "scatter-add"]
        if not model.is_less_by_tables(products, at.share, spared, added, at.index.size):
            return "computing all rows takes no longer"
        return None

    def rewrite(self, match: SumsOfRows, rw: Rewriter) -> None:
        sum_first(match.found, rw)
