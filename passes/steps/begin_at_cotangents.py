"""Begin a transposed loop at the last row of its cotangents that is not zero.

Before::

    g, h = scan[n, reverse] carry(g=0.0, h=0.0) xs(x=ct, y=ys) {
      a = add_any h x
      ...
      yield carry(g1, h1)
    }

After::

    last = reduce_max(where(reduce_or(ct != 0), iota + 1, 0))
    i, g, h = while carry(i=last - 1, g=0.0, h=0.0) { ge i 0 } {
      x, y = ct[i], ys[i]
      ...
      yield i - 1, g1, h1
    }

A mask drops losses of padded steps after the loop that made their outputs, ``jnp.where(mask,
losses, 0).sum()``, or one row of the outputs is picked, ``outputs[length - 1]``. Then the rows of
cotangents are zeros at the end of the sequence, and what the transposed loop carries stays zeros
until it comes to the first row that is not: no step before that does anything. Sound when

1. JAX made the loop by transposing, and it runs in reverse: it is linear in what it carries and in
   those rows, so that the sign of a zero, and what a zero is multiplied by, do not matter;
2. with rows of zeros, and all that it carries as it began, counters apart, a step leaves that so;
3. it has no effects, and devices do not wait for each other in it;
4. what such a step stacks is a number, or computed from outer values and what the loop begins with;
5. nothing differentiates the loop any more (the final phase): a `while` has no transpose.

A loop that says itself which steps it takes is left to `exit-loop-early`, whose condition 10 says
which loops make no more rows than this one reads.

Cost: testing all rows, once, if a step takes much longer than testing its row; if it takes longer
at all, testing one row after another, from the last, until one is not zero::

    last = while carry(l=n) { and (gt l 0) (all (eq ct[l - 1] 0)) } { yield l - 1 }

It fires if what makes the cotangents leaves rows of zeros where a mask of whole numbers, or an
index, says so, or what may be a mask: an argument of floats, fewer than the cotangents.
Source: padded sequences, whose loss is computed after the scan, as in `flax.nnx.RNN`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.residuals.unread_rows import feeders
from jaxpr_opt.analysis.steps.questions import steps_asked_at_once
from jaxpr_opt.analysis.steps.skipped_rows import skipped_row
from jaxpr_opt.analysis.steps.skips import Skip
from jaxpr_opt.analysis.steps.zero_rows import ZeroRows, zero_rows
from jaxpr_opt.builders.steps.early_exit import Plan, stop_early
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.devices import has_divided_rows
from jaxpr_opt.ir.graph import Op, Phase, Scan, Stream
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import may_depend_on, may_skip_steps


@dataclass(frozen=True, slots=True, eq=False)
class ZeroCotangents(Match):
    """A transposed loop that may begin with rows of zeros."""

    op: Scan
    found: ZeroRows

    @property
    def skip(self) -> Skip:
        """The steps of such rows, as if the first of the rows said which they are."""
        found = self.found
        return Skip(found.scan, found.streams[0].param, found.counters, found.values)


@dataclass(frozen=True)
class BeginAtCotangents(Pass[ZeroCotangents]):
    """Transposed loop over rows of which the first are zeros -> loop over the others."""

    name: ClassVar[str] = "begin-at-cotangents"
    phase: ClassVar[Phase] = "final"  # (5)
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[ZeroCotangents]:
        if not cost_model().is_worth_a_question(op.body):
            return
        found = zero_rows(op)  # (1, 2)
        if found is not None:
            says = f"a loop of {op.length} steps begins at the last cotangent that is not zero"
            yield ZeroCotangents(op, says, found)

    def refuse(self, match: ZeroCotangents) -> str | None:
        skip, scan = match.skip, match.found.scan
        if scan.length < 2:
            return f"the loop has {scan.length} steps only"
        if steps_asked_at_once(scan) is None:
            return "it asks to be unrolled"
        if not may_skip_steps(scan):  # (3)
            return "a step has effects"
        for stream in match.found.streams:
            if not may_depend_on(stream.param, scan.body.ops, scan):  # (3)
                return "a step has collectives, so every device must run it"
            if has_divided_rows(stream.param, scan):
                return "XLA may divide the rows over devices, which would ask each other"
            if not _is_tested_at_once(scan, stream) and not _is_tested_alone(scan, stream):
                return "testing a row takes about as long as a step"
        for stack in scan.stacks:
            if isinstance(reason := skipped_row(skip, stack), str):  # (4)
                return reason
        return None

    def rewrite(self, match: ZeroCotangents, rw: Rewriter) -> None:
        found, first = match.found, match.found.scan.body.first
        assert first is not None

        rows = [stream.param for stream in found.streams]
        is_taken = rw.insert(_any_is_not_zero, *rows, before=first)
        ops = backward_slice([is_taken], lambda v: v.region is not found.scan.body)
        skip = replace(match.skip, predicate=is_taken, slice=tuple(ops))
        worth = cost_model().is_worth_a_question
        feeding = [each for each in feeders(skip) if worth(each.body)]
        at_once = all(_is_tested_at_once(found.scan, stream) for stream in found.streams)
        every = steps_asked_at_once(found.scan) or 1
        stop_early(Plan(skip, every, feeders=feeding, one_by_one=not at_once), rw)


def _is_tested_at_once(scan: Scan, stream: Stream) -> bool:
    return cost_model().is_worth_questions(scan.body, stream.param)


def _is_tested_alone(scan: Scan, stream: Stream) -> bool:
    return cost_model().is_worth_a_search(scan.body, stream.param)


def _any_is_not_zero(*rows: jax.Array) -> jax.Array:
    """Whether some number is not zero: the least or the largest, which are none where one is none.

    XLA:CPU reduces an array where it lies, also through a transpose, but not what is made of it.
    """
    ends = [each(row, range(row.ndim)) for row in rows for each in (lax.reduce_max, lax.reduce_min)]
    return reduce(lax.bitwise_or, [lax.ne(each, lax.full_like(each, 0)) for each in ends])
