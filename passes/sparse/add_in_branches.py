"""Add inside the branch that makes a term, and pass the array through the other branches unchanged.

Before::

    g = cond p {
      d = dot_general a b
      yield d
    } else {
      z = broadcast_in_dim 0.0
      yield z
    }
    c1 = add_any c g

After::

    c1 = cond p {
      d = dot_general a b
      s = add_any c d
      yield s
    } else {
      yield c
    }

The transpose of a `cond` or `switch` in a loop returns zeros, as large as the arrays that the other
branches read, and each step adds them: weights of an expert, a table that is read under a
condition. Sound when

1. a branch yields zeros for the term, because c + 0 is c, up to the sign of zero; or zeros with a
   window in them; only the sum reads the term;
2. the other summand has the type of the sum, and is defined before the cond, or made by ops that
   can move there and do not depend on the cond;
3. nothing that moves has effects or communicates.

Cost: a branch that only wrote zeros costs nothing when it is taken. It fires in loops only, for
arrays large enough to matter to a step, and not if the array is read afterwards: XLA would copy it
in place of the zeros. If the branch adds a window among zeros, `accumulate-sparse-cotangents` then
adds the window alone.
Source: https://github.com/jax-ml/jax/issues/8239, the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.sparse.scatter_chains import added
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.enclosing import is_read_after
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Region, Value
from jaxpr_opt.ir.nesting import is_in_a_loop
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS, can_move
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class SumOfBranches(Match):
    """The op adds a cond's result, which is zero from some branch, to `array`."""

    cond: Cond
    outcome: Outcome
    array: Value


@dataclass(frozen=True)
class AddInBranches(Pass[SumOfBranches]):
    """A sum with what a cond makes, or with its zeros -> the sum in the branch that makes it."""

    name: ClassVar[str] = "add-in-branches"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = SUMS
    needs: ClassVar[frozenset[str]] = frozenset({"cond"})

    def find(self, op: Op) -> Iterator[SumOfBranches]:
        if not is_in_a_loop(op):
            return
        for array, term in (op.operands, op.operands[::-1]):
            cond = term.op
            if not isinstance(cond, Cond) or cond.region is not op.region:
                continue
            outcome = cond.outcomes[cond.results.index(term)]
            if any(map(_is_sparse, outcome.values)):  # (1)
                says = f"{bytes_text(array.nbytes)} are added to only in the branch that is taken"
                yield SumOfBranches(op, says, cond, outcome, array, about=op.result)

    def refuse(self, match: SumOfBranches) -> str | None:
        op, cond, array, term = match.op, match.cond, match.array, match.outcome.result
        if cost_model().is_hidden(array.nbytes):
            return f"{array.label} is small"
        if [use.op for use in term.uses] != [op]:  # (1)
            return f"{term.label} is read elsewhere"
        if array.aval != op.result.aval:  # (2)
            return f"the sum is a {op.result.exact_type}, what it is added to a {array.exact_type}"
        between = _between(array, cond)
        for each in between:
            if not can_move(each):  # (3)
                return f"{each.name} stays behind the cond"
            if each is cond:  # (2)
                return f"{array.label} depends on the cond"
        if is_read_after(array, op):
            return f"{array.label} is read afterwards, so XLA would copy it"
        return None

    def rewrite(self, match: SumOfBranches, rw: Rewriter) -> None:
        op, cond, outcome, array = match.op, match.cond, match.outcome, match.array
        for each in _between(array, cond):
            rw.move(each, cond)
        values = tuple(
            array if uniform(value) == 0 else _added(op, outcome.result, value, branch, rw)
            for value, branch in zip(outcome.values, cond.branches, strict=True)
        )
        new = Outcome(rw.new_value(op.result.aval, op.result.name), values)
        rw.replace(op.result, new.result)
        rw.erase(op)
        rw.set_cond(cond, [new if o.result is outcome.result else o for o in cond.outcomes])


def _is_sparse(value: Value) -> bool:
    """Whether these are zeros, maybe with pieces in them (1)."""
    chain = added(value)
    is_piece = chain.starts_at_zero and not cost_model().is_most(chain.nbytes, value.nbytes)
    return uniform(value) == 0 or is_piece


def _added(op: Op, term: Value, value: Value, branch: Region, rw: Rewriter) -> Value:
    """The sum at the end of a branch that yields `value` for the term."""
    return rw.clone([op], {term: value}, branch.terminator)[op.result]


def _between(array: Value, cond: Cond) -> list[Op]:
    """The ops behind a cond that make an array, in order."""
    region = cond.region
    assert region is not None
    start = region.order(cond)

    def is_before(value: Value) -> bool:
        return value.op is None or value.region is not region or region.order(value.op) < start

    return backward_slice([array], is_before)
