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
the others is cut next. Windows that cover little of the array are written to zeros, or to the other
terms.

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
        count = len(found.pieces)
        if not cost_model().is_side_by_side(count, found.share, found.run, array.nbytes):
            return "the windows are few, or most of the array"
        return None

    def rewrite(self, match: Padded, rw: Rewriter) -> None:
        found, op = match.sum, match.op
        operands = (*(piece.update for piece in found.pieces.values()), *found.dense)
        covered = sum(end - start for start, end in found.touched())
        is_most = cost_model().is_most(covered, op.result.shape[found.axis])
        code = partial(concatenated if is_most else written, found)  # (2)
        rw.replace(op.result, rw.typed(code, op.result.aval, *operands, before=op))
        for each in (*found.sums, *(piece.op for piece in found.pieces.values())):
            rw.erase(each)
