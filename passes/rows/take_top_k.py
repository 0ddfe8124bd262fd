"""Select the few elements that are read of what is sorted.

Before::

    s, i = sort x iota
    k = slice[:5] i

After::

    n = neg x                    # NaN is less than all numbers, zeros are equal
    t, k = top_k[k=5] n

`jnp.sort(logits)[-k]`, `jnp.argsort(costs)[:k]`, `jnp.argsort(scores)[::-1][:k]`: the threshold of
a sampler, the elites of a search, the nearest neighbours, the worst losses. XLA sorts all, and on a
CPU calls a function for each comparison. Sound when

1. one array of float32 is sorted, and others with it: zeros of both signs are equal, NaN is greater
   than all numbers, and what is equal keeps its order;
2. all that is read are slices near one end, maybe in reverse;
3. or numbers are selected already, and nothing reads their places: before JAX 0.12 XLA sorts, too,
   unless the numbers are read at their places.

Cost: a selection takes a tenth to a hundredth of the time of a sort (JAX 0.10 and 0.12), and two
arrays of the few. It fires where sorting takes longer than starting the ops. A device that sorts by
itself is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.rows.sorted_ends import (
    SortedEnd,
    axis_of_selection,
    reads_values_only,
    sorted_end,
)
from jaxpr_opt.builders.rows.selected_ends import read_at_places, select_end
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class EndOfSort(Match):
    """A sort of which few elements are read."""

    found: SortedEnd


@dataclass(frozen=True, slots=True, eq=False)
class SelectedValues(Match):
    """A selection of which only the numbers are read."""


@dataclass(frozen=True)
class TakeTopK(Pass[EndOfSort | SelectedValues]):
    """Few elements of a sorted array -> those that are greatest, or least."""

    name: ClassVar[str] = "take-top-k"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"sort", "top_k"})

    def find(self, op: Op) -> Iterator[EndOfSort | SelectedValues]:
        if op.name == "top_k":
            if cost_model().sorts_for_values and reads_values_only(op):  # (3)
                yield SelectedValues(op, "numbers are read at the places of the greatest")
            return
        found = sorted_end(op)  # (1, 2)
        if found is not None:
            says = f"{found.count} of {found.length} elements are selected, none is sorted"
            yield EndOfSort(op, says, found, about=op.operands[0])

    def refuse(self, match: EndOfSort | SelectedValues) -> str | None:
        model, array = cost_model(), match.op.operands[0]
        if isinstance(match, EndOfSort) and not model.is_longer(
            match.found.count, match.found.length
        ):
            return "most of what is sorted is read"
        length = array.shape[axis_of_selection(match.op)]
        if not model.is_sorted_longer(length, array.size // max(length, 1)):
            return "sorting takes no longer"
        return None

    def rewrite(self, match: EndOfSort | SelectedValues, rw: Rewriter) -> None:
        if isinstance(match, EndOfSort):
            select_end(match.found, rw)
        else:
            read_at_places(match.op, rw)
