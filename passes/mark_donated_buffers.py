"""Mark the arguments that the caller gives up and whose memory a result can take.

Before::

    fn (params:f32[8], gradient:f32[8]) {
      step:f32[8] = mul gradient 0.1
      new:f32[8] = sub params step
      return new
    }

After, where the caller gives up both::

    fn (params:f32[8] becomes new, gradient:f32[8]) {
      step:f32[8] = mul gradient 0.1
      new:f32[8] = sub params step
      return new
    }

Sound when

1. the caller gives the argument up (`Offer`): nothing reads it after the call;
2. the two have the same shape, dtype, memory, sharding and layout, as far as these are known;
3. nothing reads the argument after the result is made, or while it is made. Otherwise XLA copies
   the argument first, and what is saved on one side is spent on the other. If the result is made
   elementwise from the argument and another op reads the argument later, XLA can run that op first;
4. an argument becomes one result, and no two arguments become the same result.

Cost: none, and one buffer less for each marked argument. JAX pairs arguments and results of a type
in order; this pass chooses the pairs of which most need no copy.
Source: https://github.com/jax-ml/jax/issues/1733, https://github.com/jax-ml/jax/issues/9675.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from jaxpr_opt.analysis.liveness.aliasing import Offer, aliasing
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.aliases import Aliasing
from jaxpr_opt.ir.graph import TERMINATOR, Graph, Op, Phase
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Marked(Match):
    """What can be donated of a program's arguments, at the op that returns its results."""

    found: Aliasing


@dataclass(frozen=True, slots=True, eq=False)
class Unmarked(Match):
    """An argument that cannot be donated."""

    reason: str


@dataclass(frozen=True)
class MarkDonatedBuffers(Pass[Marked | Unmarked]):
    """Mark the arguments that a caller gives up and a result can take the place of."""

    name: ClassVar[str] = "mark-donated-buffers"
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = frozenset({TERMINATOR})
    at_once: ClassVar[bool] = True

    offer: Offer | None = field(default=None, compare=False)
    """What the caller gives up; without it there is nothing to mark."""

    def find(self, op: Op) -> Iterator[Marked | Unmarked]:
        graph = op.region.owner if op.region is not None else None
        if self.offer is None or not isinstance(graph, Graph):  # (1)
            return
        found = aliasing(graph, self.offer)
        if found != graph.donated:
            yield Marked(op, f"{len(found.aliases)} arguments become results", found)
        for each in found.refused:
            what = f"argument {each.input} stays the caller's"
            yield Unmarked(op, what, each.reason, at=each.op, is_refused=True)

    def refuse(self, match: Marked | Unmarked) -> str | None:
        return match.reason if isinstance(match, Unmarked) else None

    def rewrite(self, match: Marked | Unmarked, rw: Rewriter) -> None:
        assert isinstance(match, Marked)
        rw.mark_donated(match.found)
