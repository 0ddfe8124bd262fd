"""Compute only the rows of a result that are read.

Before::

    h = tanh d
    y = dot_general h w          # of all positions
    r = dynamic_slice y i 0      # of which one is read

After::

    x = dynamic_slice d i 0
    h = tanh x
    r = dot_general h w

The last position's logits of a sequence, one output of a masked network, one particle's forces: the
step that reads one row computes all of them. Sound, up to rounding, when

1. the read is a slice, and each row along the axes of which it reads a part depends on one row of
   an operand, or of several, and on nothing else of them; so on backwards
   (`jaxpr_opt.analysis.windows.read_rows`);
2. all readers of a result need the same rows of it, in the same step.

Cost: rows instead of results, and a copy of what is read of a factor, if that is less than what is
no longer made, or a small part of the factor. XLA does so for elementwise ops that it fuses with
their reader: these alone are no reason to touch a program. A product of fewer rows may be rounded
otherwise.
Source: sampling from a language model without a cache; masked autoregressive flows (Papamakarios et
al., arXiv:1705.07057).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.windows.read_rows import ReadRows, read_rows
from jaxpr_opt.analysis.windows.selections import selection
from jaxpr_opt.builders.read_rows import compute_rows
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class SliceOfRows(Match):
    """A slice of what some ops compute row by row."""

    found: ReadRows


@dataclass(frozen=True)
class ComputeReadRows(Pass[SliceOfRows]):
    """A slice of a result -> the result of slices."""

    name: ClassVar[str] = "compute-read-rows"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"dynamic_slice", "gather", "slice"})

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[SliceOfRows]:
        reads, model = selection(op), cost_model()
        found = None if reads is None else read_rows(reads)  # (1, 2)
        if found is not None and op.result.uses:
            names = [each.name for each in found.ops if not model.is_made_where_read(each)]
            says = f"{', '.join(names) or 'arithmetic'}: of the rows that {op.name} reads only"
            yield SliceOfRows(op, says, found, is_cleanup=not names)

    def refuse(self, match: SliceOfRows) -> str | None:
        array, model = match.found.selection.array, cost_model()
        if model.is_most(match.op.result.nbytes, array.nbytes):
            return f"what is read is most of {array.label}"
        for factor, copied, spared in match.found.copied():
            if not model.may_be_copied(copied, factor.nbytes, spared):
                return f"a part of {factor.label} would be copied"
        return None

    def rewrite(self, match: SliceOfRows, rw: Rewriter) -> None:
        op, found = match.op, match.found
        rw.replace(op.result, compute_rows(found, rw))
        for each in (op, *reversed(found.ops)):
            rw.erase(each)
