"""Compute only the rows of a result that are read.

Before::

    h = tanh d
    y = dot_general h w          # of all positions
    r = dynamic_slice y i 0      # of which one is read

After::

    x = dynamic_slice d i 0
    h = tanh x
    r = dot_general h w

A step that reads a row of what was computed before its loop computes that row (farthest points, a
pivoted Cholesky factor, a greedy choice by similarity); so does the last position's head of a
sequence, one output of a masked network, one particle's forces; and the ratings of pairs of users
and items, the scores of labels, a diagonal: elements at several places.  Sound, up to rounding,
when

1. each read is a slice, or elements at several places, and each row along the axes of which it
   reads a part depends on one row of an operand, or of several, and on nothing else of them; so on
   backwards (`jaxpr_opt.analysis.rows.read_rows`). What is filled in for places out of range is
   filled into what is computed;
2. all readers of a result need rows of it; what is computed from them, for one read, needs the same
   rows;
3. a read is in loops of known length, or in none;
4. if there are several, no discontinuous op depends on two of them: it could compare a row with
   itself, rounded otherwise.

Cost: all rows that are read take clearly less time than the whole, what they are made of takes
less memory (of rows that were scattered to zeros, only these), and a copy of what is read of a
factor is less than what is no longer made, or a small part of the factor. XLA does so for
elementwise ops that it fuses with their reader: these alone are no reason to touch a program. A
product of fewer rows may be rounded otherwise.
Source: sampling from a language model without a cache; masked autoregressive flows (Papamakarios et
al., arXiv:1705.07057); farthest point sampling (Qi et al., PointNet++, arXiv:1706.02413).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.rows.read_rows import ReadRows, reads_of_rows
from jaxpr_opt.analysis.rows.selections import selection
from jaxpr_opt.analysis.sparse.scatter_chains import SCATTERS
from jaxpr_opt.analysis.values.compared import are_compared
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.builders.rows.read_rows import compute_rows
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class RowsOfAnArray(Match):
    """All reads of an array, which read some of its rows, and what computes it row by row."""

    array: Value
    reads: tuple[ReadRows, ...]

    @property
    def ops(self) -> list[Op]:
        """What computes all rows, the last first."""
        region = self.array.region
        assert region is not None
        found = {op for each in self.reads for op in each.ops}
        return sorted(found, key=region.order, reverse=True)

    @property
    def are_read_at_once(self) -> bool:
        """Whether all is read soon after it is computed: then what it is computed from is still in
        memory.
        """
        op, left = self.array.op, {each.selection.op for each in self.reads}
        made = 0
        while left and op is not None and made <= self.array.nbytes:
            op = op.next
            left.discard(op)
            made += sum(v.nbytes for v in op.results) if op is not None else 0
        return not left

    def kept(self, factor: Value) -> int:
        """Bytes that stay until rows of a factor are read: one number everywhere but in rows that
        were scattered to it is no array then.
        """
        op, ops = factor.op, self.ops
        if op is None or op.name not in SCATTERS or uniform(op.operands[0]) is None:
            return int(factor.nbytes)
        is_read_here = all(each.selection.op.region is factor.region for each in self.reads)
        is_array = not is_read_here or any(user not in ops for user in factor.users)
        return int(factor.nbytes if is_array else op.operands[2].nbytes)

    @property
    def arrays(self) -> set[Value]:
        """What is read."""
        return {each.selection.array for each in self.reads}


@dataclass(frozen=True)
class ComputeReadRows(Pass[RowsOfAnArray]):
    """Slices of a result -> the results of slices."""

    name: ClassVar[str] = "compute-read-rows"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"dynamic_slice", "gather", "slice"})

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[RowsOfAnArray]:
        array = op.operands[0]
        is_first = op is next(iter(array.uses)).op
        if not is_first or selection(op) is None or not op.result.uses or not op.result.nbytes:
            return
        reads = reads_of_rows(array)  # (1, 2, 3)
        if reads:
            made = [o.name for o in reads[0].ops if not cost_model().is_made_where_read(o)]
            says = f"{', '.join(made) or 'arithmetic'}: of the rows that {op.name} reads only"
            is_cleanup = not made and op.region is array.region
            yield RowsOfAnArray(op, says, array, reads, about=array, is_cleanup=is_cleanup)

    def refuse(self, match: RowsOfAnArray) -> str | None:
        array, reads, model = match.array, match.reads, cost_model()
        size = sum(v.nbytes for v in match.arrays)
        if model.is_most(sum(each.read / each.selection.array.nbytes for each in reads), 1):
            return f"what is read is most of {array.label}"
        for factor, copied, spared in (copy for each in reads for copy in each.copied()):
            if not model.may_be_copied(copied, factor.nbytes, spared):
                return f"a part of {factor.label} would be copied"
        factors = {v for each in reads for v in each.factors if v.op is not None}
        if sum(map(match.kept, factors)) > size and not match.are_read_at_once:
            return f"what it is computed from takes more memory than {array.label}"
        whole, runs = (
            model.repeated(match.ops) + model.moved(array.nbytes),
            sum(r.runs for r in reads),
        )
        if runs != 1 and model.is_most(sum(map(_seconds, reads)), whole):
            return f"computing the rows takes as long as computing all of {array.label}"
        # Condition 4 of compute-read-rows.
        if are_compared([each.selection.op.result for each in reads]):
            return f"rows of {array.label} that are read at two places are compared"
        return None

    def rewrite(self, match: RowsOfAnArray, rw: Rewriter) -> None:
        for each in match.reads:
            op = each.selection.op
            rw.replace(op.result, compute_rows(each, rw))
            rw.erase(op)
        for op in match.ops:
            rw.erase(op)


def _seconds(reads: ReadRows) -> float:
    """Seconds to compute what is read, in all runs."""
    if reads.selection.points:
        windows, rows = reads.windows, reads.products_of_rows
        return cost_model().elements_computed(reads.parts, reads.runs, windows, rows)
    factors = sum(v.nbytes for v, part in reads.factors.items() if not part)
    return reads.runs * cost_model().rows_computed(reads.parts, factors)
