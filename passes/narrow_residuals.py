"""Keep what a residual is cheaply made from, where that is smaller, and make it again where it is
read.

Before::

    h, r, k = scan[8] carry(c=z) xs(p=ps) {
      m = broadcast_in_dim[shape=(5, 4)] p
      w1 = select_n m w0 w
      t = tanh (dot_general c w1)
      s = sub 1.0 t
      yield carry(t) ys(w1, t, s)
    }
    g = scan[8, reverse] carry(c=ct) xs(a=r, b=k, d=q) { f a b d }

After::

    h, k = scan[8] carry(c=z) xs(p=ps) {
      m = broadcast_in_dim[shape=(5, 4)] p
      w1 = select_n m w0 w
      t = tanh (dot_general c w1)
      yield carry(t) ys(t)
    }
    g = scan[8, reverse] carry(c=ct) xs(p=ps, b=k) {
      m = broadcast_in_dim[shape=(5, 4)] p
      a = select_n m w0 w
      d = sub 1.0 b
      f a b d
    }

Sound when

1. the stack is read only row by row, in loops or nests of loops of as many steps;
2. its value is made by few cheap ops, which are repeated in the loops that read it, from values
   defined outside of the loop, rows of its streams, and values that are stacked, now or already.

Cost: the values newly stacked are smaller than the one no longer stacked, by a factor unless the
loop skips, as one that runs all its steps recomputes in each.  Where nothing else needs the cheap
ops, they only move.
Source: the masks of a vmapped cond, https://github.com/jax-ml/jax/issues/8239 with a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.cuts import Cut, available, cut, residuals
from jaxpr_opt.analysis.skips import find_skip
from jaxpr_opt.handover import make_cut
from jaxpr_opt.ir import Constant, Op, Scan, Value
from jaxpr_opt.pipeline import Match, Pass
from jaxpr_opt.rewriter import Rewriter
from jaxpr_opt.traits import is_arithmetic

MAX_DEPTH = 8
"""How many ops in a row are repeated for one residual."""

WORTHWHILE = 3
"""What a loop that runs all its steps stores must shrink by more: a mask of bools instead of
floats is worth it, another order of the same arrays is not."""


@dataclass(frozen=True, slots=True, eq=False)
class Wide(Match):
    """A residual, and the cut at the values it would be made from."""

    cut: Cut
    factor: int


@dataclass(frozen=True)
class NarrowResiduals(Pass):
    """Store less and recompute the cheap rest: masks before they are spread, t instead of 1 - t."""

    name: ClassVar[str] = "narrow-residuals"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Op) -> Iterator[Wide]:
        assert isinstance(op, Scan)
        found = residuals(op)
        stacked = available(op)
        factor = WORTHWHILE if found and find_skip(op) is None else 1
        for stack, value in found:
            leaves = _cheapest(value, op, stacked, MAX_DEPTH)
            narrow = cut(op, [(stack, value)], keep=leaves.__contains__)
            if narrow is not None and narrow.ops:
                sources = ", ".join(leaf.label for leaf in leaves) or "outer values"
                says = f"{value.label} is made again from {sources}"
                yield Wide(op, says, narrow, factor, at=value.op, about=value)

    def refuse(self, match: Wide) -> str | None:
        ((_, value),) = match.cut.residuals
        assert isinstance(match.op, Scan)
        nbytes = match.cut.new_bytes // max(match.op.length, 1)
        if nbytes * match.factor >= value.nbytes:
            takes = f"{value.label} takes {value.nbytes} bytes a step"
            return f"{takes}, what it is made from {nbytes}"
        return None

    def rewrite(self, match: Wide, rw: Rewriter) -> None:
        assert isinstance(match.op, Scan)
        make_cut(match.op, match.cut, rw)


def _cheapest(
    value: Value, scan: Scan, stacked: Mapping[Value, Value], depth: int
) -> dict[Value, int]:
    """Values of a step from which a value can be made, for the fewest bytes stacked anew (2)."""
    if isinstance(value, Constant) or not scan.body.defines(value):
        return {}
    if depth < MAX_DEPTH and (value in stacked or scan.stream_of(value) is not None):
        return {value: 0}
    whole = {value: value.nbytes}
    if depth == 0 or value.op is None or not is_arithmetic(value.op):
        return whole
    parts: dict[Value, int] = {}
    for operand in value.op.operands:
        parts |= _cheapest(operand, scan, stacked, depth - 1)
    return parts if depth == MAX_DEPTH or sum(parts.values()) < value.nbytes else whole
