"""Remember that a loop has ended, where a step asks a counter, too, whether to do something.

Before::

    scan[100] carry(x=x_0, e=e_0) xs(t=iota) {
      p = or (eq t 0) (gt e 0.001)
      x1, e1 = cond p { step(x) } else { x, e }
      yield carry(x1, e1)
    }

After::

    scan[100] carry(x=x_0, e=e_0, g=true) xs(t=iota) {
      p = or (eq t 0) (gt e 0.001)
      q = and g p
      x1, e1 = cond q { step(x) } else { x, e }
      yield carry(x1, e1, q)
    }

A predicate of carries that a skipped step keeps stays false, and one of counters is known before
the loop: then the loop ends early. A predicate of both is neither. Where a step does nothing if
such a predicate is false, it is carried. Sound when

1. each step in which the predicate is false everywhere is followed by such a step
   (`jaxpr_opt.analysis.steps.lasting`): so `q` is what `p` is.

Cost: a truth value that is carried. It pays if the loop then ends early, so it is left where a step
takes no longer than asking whether to go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.steps.lasting import lasts
from jaxpr_opt.analysis.steps.questions import steps_a_question
from jaxpr_opt.analysis.steps.skips import Skip, find_mixed
from jaxpr_opt.builders.steps.any_row import any_row
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import has_divided_rows, is_manual
from jaxpr_opt.ir.graph import Op, Scan
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class MixedPredicate(Match):
    """A scan, and how it skips steps."""

    op: Scan
    skip: Skip


@dataclass(frozen=True)
class RememberTheEnd(Pass[MixedPredicate]):
    """A predicate that stays false -> a truth value that the loop carries."""

    name: ClassVar[str] = "remember-the-end"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[MixedPredicate]:
        for skip in find_mixed(op)[:1]:
            if steps_a_question(op, skip) is not None:
                says = "a step that does nothing is followed by such steps only"
                yield MixedPredicate(op, says, skip, about=skip.predicate)

    def refuse(self, match: MixedPredicate) -> str | None:
        if not lasts(match.skip):  # (1)
            return "a step after one that does nothing may do something"
        if is_manual(match.op) or has_divided_rows(match.skip.predicate, match.op):
            return "each device would carry a truth value of its own"
        return None

    def rewrite(self, match: MixedPredicate, rw: Rewriter) -> None:
        skip, scan, wanted = match.skip, match.skip.scan, match.skip.taken_when
        go = rw.carry(scan, rw.scalar(True, np.bool_), "go").param
        after = skip.predicate.op.next if skip.predicate.op is not None else scan.body.first
        assert after is not None
        uses = set(skip.predicate.uses)

        def joined(go: jax.Array, p: jax.Array) -> tuple[jax.Array, jax.Array]:
            goes = lax.broadcast(go, p.shape)
            both = lax.bitwise_and(goes, p) if wanted else lax.bitwise_or(lax.bitwise_not(goes), p)
            return both, any_row(both, wanted)

        both, taken = rw.insert_many(joined, go, skip.predicate, before=after)
        rw.replace(skip.predicate, both, uses.__contains__)
        rw.set_last_next(scan, taken)
