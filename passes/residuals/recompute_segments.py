"""Drop arrays that straight-line code makes early and reads late, and recompute them, segment by
segment, before their readers.

Before::

    a = tanh (dot_general x w)
    b = tanh (dot_general a v)
    c = sin b
    e = mul c ...
    f = mul e b
    g = mul (dot_general f v) a

After::

    a = tanh (dot_general x w)
    b = tanh (dot_general a v)
    c = sin b
    e = mul c ...
    a2, e2 = optimization_barrier a e
    b2 = tanh (dot_general a2 v)
    f = mul e2 b2
    g = mul (dot_general f v) a2

The pass knows neither layers nor gradients. It divides the ops that run before memory peaks, and
whose results are read after it, into segments, at cuts that few arrays cross. It stores those
arrays, and recomputes a segment when its first reader comes. In a gradient the last segment comes
first, so one segment at a time is alive. `jaxpr_opt.analysis.liveness.rematerialization` decides
which segments there are, and what they store; a segment may be divided again when it is recomputed.

XLA would merge a recomputed op with the original, or run it early. So a segment starts from arrays
that go through an optimization barrier together with an operand of its first reader, as in
`jax.checkpoint`. JAX 0.10 drops barriers on a CPU; there a select chooses each array by a predicate
made of that operand, which XLA does not see through.

Sound when

1. what is recomputed has no effects, gives the same on the same operands (random keys are data),
   and waits for no other device; where XLA may divide arrays over devices, it is pointwise;
2. what it starts from is available: arguments, values from outside, what is stored, and what a
   segment was recomputed to that is divided again;
3. it is inserted before its first reader, after the operand that it waits for.

Once only:

4. where there are barriers already, the order has been decided.

Cost: nothing is done unless memory has a price (`optimize(memory=...)`). Then the recomputed
seconds, at the prices of the cost model, must be worth less than the bytes dropped at the peak.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174); Beaumont et
al., "Optimal checkpointing for heterogeneous chains" (arXiv:1911.13214).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.liveness.across_peak import Turn
from jaxpr_opt.analysis.liveness.rematerialization import Dropping, cheapest, droppings
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.ops import cost
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.insight.timeline import timeline
from jaxpr_opt.ir.facts import copied_from, remembered
from jaxpr_opt.ir.graph import TERMINATOR, Op, Region
from jaxpr_opt.ir.nesting import program_of, runs
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.memory.planner import Trade
from jaxpr_opt.memory.recomputing import Again, again, recompute
from jaxpr_opt.sizes import binary_text


@dataclass(frozen=True, slots=True, eq=False)
class DroppedSegments(Match):
    """A region whose memory peaks, and what to compute again there."""

    turn: Turn | None = None
    """None where that is decided already."""
    parts: Sequence[Again] = ()


@dataclass(frozen=True)
class RecomputeSegments(Pass[DroppedSegments]):
    """Arrays that wait for the backward pass -> what they are computed from, and that again."""

    name: ClassVar[str] = "recompute-segments"
    primitives: ClassVar[frozenset[str]] = frozenset({TERMINATOR})
    at_once: ClassVar[bool] = True

    def looks_at(self, names: object) -> bool:
        """Whether memory is to be less: any straight-line code may hold arrays for long."""
        del names
        return cost_model().is_traded

    def find(self, op: Op) -> Iterator[DroppedSegments]:
        region = op.region
        if not cost_model().is_traded or region is None:
            return
        if _is_decided(region):
            yield DroppedSegments(op, "arrays are computed again", is_refused=True)
            return
        if cost_model().keeps_all:
            return
        found = cheapest(op) if _is_at_peak(region) else None
        parts = [] if found is None else again(found)
        if found is None or not parts:
            return
        dropped = (value for part in parts for value in part.dropped)
        largest = max(dropped, key=lambda value: value.nbytes)
        fewer = binary_text(found.before - found.nbytes)
        says = f"{fewer} of arrays are computed again where they are read"
        at, trades = largest.op, _trades(op)
        yield DroppedSegments(op, says, found.turn, parts, at=at, about=largest, trades=trades)

    def refuse(self, match: DroppedSegments) -> str | None:
        if match.turn is None:  # (4)
            return "an optimization_barrier already fixes the order"
        return None

    def rewrite(self, match: DroppedSegments, rw: Rewriter) -> None:
        assert match.turn is not None
        recompute(match.turn, match.parts, rw)


@remembered
def _trades(end: Op) -> tuple[Trade, ...]:
    """The bytes that may be dropped and the seconds that they cost, the fastest first."""
    if (original := copied_from(end)) is not None:
        return _trades(original)
    return tuple(_trade(each, runs(end)) for each in droppings(end))


def _trade(found: Dropping, times: int) -> Trade:
    """The bytes that a region saves and the seconds that it pays, if it runs so many times."""
    flops = sum(cost(op).flops or 0 for part in again(found) for op in part.ops)
    saved = found.before - found.nbytes
    return Trade(found.nbytes / found.before, times * found.seconds, saved, times * flops)


def _is_at_peak(region: Region) -> bool:
    """Whether the program takes most memory while the ops of a region run, or what is in them."""
    program = program_of(region.terminator)
    if program is None or region is program.body:
        return program is not None
    return region.contains(_peak(program.body.terminator).region)


@remembered
def _peak(terminator: Op) -> Op:
    """The op that runs where most is live in the program that ends here."""
    program = program_of(terminator)
    assert program is not None
    return timeline(program).peak.op


def _is_decided(region: Region) -> bool:
    """Whether there is a barrier among the ops of a region."""
    return any(op.name == "optimization_barrier" for op in region.ops)
