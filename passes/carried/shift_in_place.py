"""Move where a shift register starts, not its rows.

Before::

    b, ys = scan[n] carry(b=b0) xs(x=xs) {
      y = f b[0] x
      c = concatenate (slice[1:] b) y
      yield carry(c) ys(y)
    }

After::

    r, ys = scan[n] carry(r=b0) xs(x=xs, t=iota) {
      y = f (dynamic_slice r t%W) x
      c = dynamic_update_slice r y t%W
      yield carry(c) ys(y)
    }
    b = concatenate (slice[n%W:] r) (slice[:n%W] r)

A delay line, the history of a delay equation, a queue of fixed length, a generator of random
numbers with lags: a step drops a row at one end, appends one at the other, and reads a few. By hand
one writes a ring. The transposed loop of such a step moves the cotangents the other way, with zeros
entering, and adds rows: that is a ring, too. Sound when

1. a step makes the carry's next value of its rows, all moved alike along one axis, but for rows at
   fixed places that come from elsewhere;
2. all else that uses one of the versions reads, writes or adds to single rows of it, at fixed
   places or at places from the data, out of range alike; nothing keeps a version as a whole;
3. what is added to a version is zero but for rows, of which no two have an element in common;
4. the shapes are numbers, and no device holds a part of the register only;
5. an index can number the rows, and all places that the start moves through.

After the loop the rows are put into their order, once.

Cost: a step moves the rows that it reads and writes, not the register. It fires if these are a
small part of a register that takes longer to move than a loop's step takes anyway.
Source: what audio programs, delay equations and queues do by hand;
https://github.com/jax-ml/jax/issues/17640 (a ring buffer by hand).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from jaxpr_opt.analysis.carried.rings import MOVES, Ring, ring
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.carried.ring_rows import turn
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Scan
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class ShiftedArray(Match):
    """A carry that is a shift register; or why it cannot be a ring."""

    op: Scan
    found: Ring | str


@dataclass(frozen=True)
class ShiftInPlace(Pass[ShiftedArray]):
    """A register whose rows move -> a ring whose start does."""

    name: ClassVar[str] = "shift-in-place"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    needs: ClassVar[frozenset[str]] = MOVES

    def find(self, op: Scan) -> Iterator[ShiftedArray]:
        for carry in op.carries if any(each.name in MOVES for each in op.body.ops) else ():
            found = ring(op, carry)
            if found is not None:
                says = f"{carry.param.label} is a ring: where it starts moves, not its rows"
                yield ShiftedArray(op, says, found, about=carry.param, waste="copy")

    def refuse(self, match: ShiftedArray) -> str | None:
        found = match.found
        if isinstance(found, str):
            return found  # (2)
        scan, param, prices = found.scan, found.carry.param, cost_model()
        most = scan.length * abs(found.moved) + 2 * found.held
        if not dtypes.holds(np.int32, most) or not dtypes.is_of_bytes(param.dtype):
            return "the type of the index cannot number all rows"  # (5)
        hides = prices.is_hidden if found.has_windows_apart else partial(prices.is_hidden_in, scan)
        if hides(param.nbytes):
            return "it is small"
        if not prices.is_sparse(found.nbytes, param.nbytes):
            return "a step reads and writes a good part of the register"
        if found.carry.result.uses and not prices.is_longer(1, scan.length):
            return "the loop has few steps"
        return None

    def rewrite(self, match: ShiftedArray, rw: Rewriter) -> None:
        assert isinstance(match.found, Ring)
        turn(match.found, rw)
