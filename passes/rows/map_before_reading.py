"""Compute what is made of the rows of a table once for each row, not each time that it is read.

Before::

    x = gather h senders                 # 4000 rows of the 400 of h
    m = dot_general x w

After::

    y = dot_general h w
    m = gather y senders

A message of a graph network is a product of what its sender is; a model of bytes, of residues or of
atoms embeds many of a few kinds, and normalises and multiplies each. Sound, up to rounding, when

1. gathers read whole rows of tables along one axis, all at the same places. What is out of range
   is clamped, or filled: then the filled row is one more row of each table;
2. each row of what an op makes is one of a row that is read, in the order of the places;
3. what else it reads is the same for all rows;
4. a derivative would multiply rows that are never read by zero, which is NaN if they are infinite:
   while JAX may differentiate the program, they are replaced by one that is read.

Cost: fewer rows of products and of functions of numbers, for reads of what comes of them. Basic
arithmetic alone is no reason to touch a program: XLA computes it where it is read. What is made of
all rows of the tables takes no more memory than the rows that are no longer read.
Source: https://github.com/RUCAIBox/RecBole-GNN/pull/75 (rows of senders take most of the memory of
a graph network); Kipf and Welling, arXiv:1609.02907, multiply before they sum over neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.rows.mapped_reads import MappedReads, mapped_reads
from jaxpr_opt.builders.rows.mapped_reads import map_tables
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Phase
from jaxpr_opt.ir.nesting import program_of
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class RowsOfTables(Match):
    """What is made of rows that are read more often than there are rows."""

    found: MappedReads


@dataclass(frozen=True)
class MapBeforeReading(Pass[RowsOfTables]):
    """Ops on rows that are read -> reads of ops on all rows."""

    name: ClassVar[str] = "map-before-reading"
    phase: ClassVar[Phase] = "differentiated"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"gather"})

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[RowsOfTables]:
        found = mapped_reads(op)  # (1, 2, 3)
        if found is not None:
            model = cost_model()
            made = [each.name for each in found.ops if model.is_function(each)]
            if made:
                says = f"{', '.join(made)}: once for each of {found.at.rows} rows that are read"
                yield RowsOfTables(op, says, found, about=op.operands[0])

    def refuse(self, match: RowsOfTables) -> str | None:
        found, model, share = match.found, cost_model(), match.found.at.share
        unread, made = (sum(v.nbytes for v in each) for each in (found.unread, found.made))
        written = sum(op.result.nbytes for op in found.ops if not model.is_made_where_read(op))
        kept = 0 if found.is_reduced and model.sums_by_library else written
        if made > unread + kept or share * made > unread:
            return "what is made of all rows of the tables takes more memory"
        program = program_of(match.op)
        marked = 0 if program is None or program.phase == "final" else found.at.index.size
        if not model.is_less_by_tables(found.ops, share, unread + written // 2, made, marked):
            return "computing all rows that are read takes no longer"
        return None

    def rewrite(self, match: RowsOfTables, rw: Rewriter) -> None:
        map_tables(match.found, rw)
