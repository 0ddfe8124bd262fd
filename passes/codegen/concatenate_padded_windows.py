"""Put the windows of a sum side by side, instead of adding arrays that are zero but for them.

Before::

    p = pad u 0.0            # (2, 8) in zeros of (8, 8)
    q = pad v 0.0
    r = pad w 0.0
    s = add_any p q
    t = add_any s r

After::

    t = concatenate u v w

A Python loop over steps, layers or columns reads `x[t]` for each `t`, or an optimiser cuts a vector
of all parameters into pieces: the transpose puts each cotangent into zeros as large as the array,
and adds them all up. XLA fuses the sum, but asks for each element of each term whether the element
is in its window: the square of the steps. Sound when

1. a term is zero but for a window at a known place, as `pad` and `concatenate` make it, and only
   the sum reads it; ``z + v`` is ``v``, up to the sign of zero;
2. the array is cut where windows begin and end: all of a part is in a window, or none; its terms
   are added up in the old order, those of other parts are left out.

Windows along several axes are cut along one, where they are the smallest part; what is padded along
the others is cut next. Windows that cover little of the array, or that XLA would compute beside it,
are written to zeros, or to the other terms.

Cost: each window once, and the array, instead of the array for each window. XLA computes up to four
terms together, and windows of fewer bytes than a cache line number by number: it takes eight rows,
or sixteen columns. Of the time of the sum (CPU, jax 0.10 and 0.12): 8 windows 0.1 to 0.6, 16 of
them 0.1 to 0.4, 64 of them 0.02 to 0.2. In the final phase: no pass follows the windows any more.
Source: the derivative of JAX's `split` is `concatenate`, that of `slice` is `pad`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from jaxpr_opt.analysis.sparse.padded_sums import PaddedSum, padded_sum
from jaxpr_opt.builders.sparse.padded_sums import concatenated, written
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Phase
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS


@dataclass(frozen=True, slots=True, eq=False)
class Padded(Match):
    """A sum of windows in zeros."""

    sum: PaddedSum


@dataclass(frozen=True)
class ConcatenatePaddedWindows(Pass[Padded]):
    """A sum of windows in zeros -> the windows side by side."""

    name: ClassVar[str] = "concatenate-padded-windows"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = SUMS
    needs: ClassVar[frozenset[str]] = frozenset({"concatenate", "pad"})

    def find(self, op: Op) -> Iterator[Padded]:
        found = padded_sum(op)  # (1)
        if found is not None:
            says = f"{len(found.pieces)} windows of {op.result.label} are put side by side"
            yield Padded(op, says, found, about=op.result)

    def refuse(self, match: Padded) -> str | None:
        found, array = match.sum, match.op.result
        count, model = len(found.pieces), cost_model()
        if not model.is_side_by_side(count, found.share, found.run, array.nbytes):
            return "the windows are few, or most of the array"
        if _is_kept(found) and model.is_no_line(found.run):
            return "XLA would keep the windows beside the array"
        return None

    def rewrite(self, match: Padded, rw: Rewriter) -> None:
        found, op = match.sum, match.op
        operands = (*(piece.update for piece in found.pieces.values()), *found.dense)
        is_most = cost_model().is_most(found.covered, op.result.shape[found.axis])
        form = concatenated if is_most and not _is_kept(found) else written
        code = partial(form, found)  # (2)
        rw.replace(op.result, rw.typed(code, op.result.aval, *operands, before=op))
        for each in (*found.sums, *(piece.op for piece in found.pieces.values())):
            rw.erase(each)


def _is_kept(found: PaddedSum) -> bool:
    """Whether XLA would keep the parts in memory, if they were put side by side."""
    return cost_model().is_in_memory(len(found.cuts()), computed=found.is_computed)
