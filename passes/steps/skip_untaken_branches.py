"""Compute a branch of a batch only if some row takes it.

Before::

    p = gt h 1.0                          # one number a row of the batch
    u = f h
    q = broadcast_in_dim[dims=(0,)] p
    h1 = select_n q h u

After::

    p = gt h 1.0
    s = reduce_or p
    h1 = cond s {
      u = f h
      q = broadcast_in_dim[dims=(0,)] p
      v = select_n q h u
      yield v
    } else {
      yield h
    }

`vmap` of a `cond` computes both branches for all rows and selects. An environment that is reset
rarely, an event, a correction: most often no row takes the branch. Sound when

1. only selects by one truth value for each row read what the branch computes. Where no row takes
   it, they give the other case, which has the type of the select and is not a constant: a constant
   marks a mask, which some row always takes;
2. nothing in the branch has effects or communicates, and XLA does not divide the rows over devices:
   it may insert collectives into the branch;
3. nothing reads the selects before the last of them; selects by other truth values are ops like
   any.

It fires only if the branch takes so much longer than the question and the other case that it is
worth asking even if some row always takes it. It does not fire where a loop skips whole steps
(`exit-loop-early` asks there), nor in a step of a `while`, where the loop asks.
Source: https://github.com/jax-ml/jax/issues/8409.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.steps.selected_work import is_read_before, only_for
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.selected_cases import spread
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Cond, Op, Phase, Region, Scan, Value, While
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import is_broadcast

_SPREADING = frozenset({"broadcast_in_dim", "convert_element_type"})
"""What makes a mask of truth values."""


@dataclass(frozen=True, slots=True, eq=False)
class Untaken(Match):
    """Selects that take case `case` of the rows where `predicate` says so, and the ops that are
    there for that case only, in order.
    """

    predicate: Value
    case: int
    selects: tuple[Op, ...]
    ops: tuple[Op, ...]
    others: tuple[Op, ...]
    """The ops that are there for the other case only."""


@dataclass(frozen=True)
class SkipUntakenBranches(Pass):
    """A case that few rows of a batch take -> a branch."""

    name: ClassVar[str] = "skip-untaken-branches"
    whole_arrays: ClassVar[bool] = True  # (2)
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = frozenset({"select_n"})
    rows: ClassVar[bool] = True

    def find(self, op: Op) -> Iterator[Untaken]:
        predicate = _predicate(op)
        if predicate is None or op.region is None or _is_asked(predicate, op):
            return
        alike = _choices(predicate, op.region)
        if alike[-1] is not op:
            return
        selects = tuple(each for each in alike if not is_read_before(each, op))  # (3)
        for case in (0, 1):
            ops = only_for(selects, case, op.region)
            if all(map(is_broadcast, ops)):
                continue
            if cost_model().is_worth_asking(ops, predicate, _nbytes(selects)):
                says = f"{len(ops)} ops run only where some row takes what they compute"
                others = only_for(selects, 1 - case, op.region)
                yield Untaken(op, says, predicate, case, selects, ops, others, about=op.result)

    def refuse(self, match: Untaken) -> str | None:
        loop = match.op.parent
        kept = [each.operands[2 - match.case] for each in match.selects]
        for each, value in zip(match.selects, kept, strict=True):
            if value.aval != each.result.aval:  # (1)
                case, selected = value.exact_type, each.result.exact_type
                return f"the other case is a {case}, what is selected a {selected}"
            if uniform(value) is not None:  # (1)
                return (
                    "the other case is a constant, as in a mask: some row always takes the branch"
                )
        if isinstance(loop, While):
            return "while the loop runs, some row takes the branch"
        if isinstance(loop, Scan) and find_skip(loop) is not None:
            return "the loop skips whole steps"
        rest = cost_model().run(match.others)
        if not cost_model().is_worth_asking(
            match.ops, match.predicate, _nbytes(match.selects), rest
        ):
            return "the other case takes as long"
        return None

    def rewrite(self, match: Untaken, rw: Rewriter) -> None:
        last = match.op
        assert last.next is not None
        end = last.next
        negated = match.case == 0
        some = rw.insert(lambda p: _some(p, negated), match.predicate, before=end)
        taken, otherwise = rw.new_region(), rw.new_region()
        for op in (*match.ops, *match.selects):
            rw.move(op, taken.terminator)
        results = [each.result for each in match.selects]
        rw.set_outputs(taken, results)
        rw.set_outputs(otherwise, [each.operands[2 - match.case] for each in match.selects])
        cond = rw.new_cond(some, [otherwise, taken], like=last, before=end)
        for old, new in zip(results, cond.results, strict=True):
            rw.replace(old, new, lambda use: not taken.contains(use.op.region))


def _some(predicate: jax.Array, negated: bool) -> jax.Array:
    """Whether any row takes the case."""
    rows = lax.bitwise_not(predicate) if negated else predicate
    return lax.reduce_or(rows, axes=tuple(range(rows.ndim)))


def _predicate(op: Op) -> Value | None:
    """The truth values, one for each row of a batch, that an op selects by (1)."""
    if op.name != "select_n" or len(op.operands) != 3:
        return None
    rows, axes = spread(op.operands[0])
    is_batch = axes == tuple(range(len(axes))) and 0 < len(axes) < len(op.result.shape)
    if rows.op is not None and rows.op.name == "convert_element_type":
        rows = rows.op.operands[0]
    return rows if is_batch and rows.dtype == bool else None


def _choices(predicate: Value, region: Region) -> list[Op]:
    """The selects of a region by these truth values, in order; the masks may be made around it."""
    found: dict[Op, None] = {}
    pending = [predicate]
    while pending:
        for user in pending.pop().users:
            if user.name in _SPREADING:
                pending.extend(user.results)
            elif user.region is region and _predicate(user) is predicate:
                found[user] = None
    return sorted(found, key=region.order)


def _is_asked(predicate: Value, op: Op) -> bool:
    """Whether an op is in a branch that runs only where some row has a predicate."""
    while (around := op.parent) is not None:
        asked = around.operands[0].op if isinstance(around, Cond) else None
        if asked is not None and asked.name == "reduce_or":
            (rows,) = asked.operands
            if rows is predicate or (rows.op is not None and predicate in rows.op.operands):
                return True
        op = around
    return False


def _nbytes(selects: Sequence[Op]) -> int:
    return sum(each.result.nbytes for each in selects)
