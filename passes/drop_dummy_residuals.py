"""Read directly what a branch hands out only because the other branch had to hand out something.

Before::

    h, r = scan[8] carry(c=z) xs(p=ps) {
      d, q = cond p {
        m = dot_general c w
        yield m, w
      } else {
        u = undefined
        yield c, u
      }
      yield carry(d) ys(q)
    }

After::

    h, r = scan[8] carry(c=z) xs(p=ps) {
      d = cond p {
        m = dot_general c w
        yield m
      } else {
        yield c
      }
      yield carry(d) ys(w)
    }

The untaken branch yields a dummy, JAX's `empty`, for every residual of the taken one: a value that
nobody reads.  Sound when

1. the result is unspecified in every branch but those that agree on one value; then it may be that
   value in all; unspecified in all, it is unspecified.  A select with an unspecified case is alike;
2. the value is defined outside of the cond, or made from such values by cheap ops that may run where
   they did not (they are repeated before the cond); or
3. the result is read inside a branch of a cond on the same predicate, where it is what its own cond
   yields in that branch, provided that is defined outside.

Cost: the value must be the same at every step of the loop around the cond: then it is never stacked.
One that changes is better left unspecified in steps that do not need it, which then write nothing.
Source: https://github.com/jax-ml/jax/issues/8239.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.constants import identity, is_undefined
from jaxpr_opt.ir import (
    UNDEFINED,
    Cond,
    Constant,
    Op,
    Outcome,
    Region,
    Scan,
    Use,
    Value,
    While,
    backward_slice,
)
from jaxpr_opt.pipeline import Match, Pass
from jaxpr_opt.rewriter import Rewriter
from jaxpr_opt.traits import all_cheap, is_speculable

MAX_REPEATED = 8
"""Ops repeated before the cond for one value: more are seldom cheaper than a select."""


@dataclass(frozen=True, slots=True, eq=False)
class Dummy(Match):
    """A result that may as well be `value`, made by `slice` inside a branch; None: any value."""

    result: Value
    value: Value | None
    slice: tuple[Op, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ReadInBranch(Match):
    """Reads of a result where the branch taken is known: each may read the value given."""

    reads: tuple[tuple[Use, Value], ...]


@dataclass(frozen=True)
class DropDummyResiduals(Pass):
    """Replace a branch result that is real in one branch only by the real value."""

    name: ClassVar[str] = "drop-dummy-residuals"

    def find(self, op: Op) -> Iterator[Match]:
        if isinstance(op, Cond):
            for outcome in op.outcomes:
                if outcome.result.uses:
                    yield from _dummy(op, outcome.result, outcome.values)
            reads = tuple(_reads_in_branch(op))
            if reads:
                yield ReadInBranch(op, f"{len(reads)} reads are under the predicate of the cond", reads)
        elif op.name == "select_n" and any(map(is_undefined, op.operands[1:])) and op.result.uses:
            yield from _dummy(op, op.result, op.operands[1:])

    def refuse(self, match: Match) -> str | None:
        if not isinstance(match, Dummy) or match.value is None:
            return None
        name = _name(match.value)
        loop = _loop(match.op)
        cause = loop and next((v for v in _inputs(match) if loop.defines(v)), None)
        if cause is not None:
            return f"{name} changes from step to step with {_name(cause)}"
        return None
