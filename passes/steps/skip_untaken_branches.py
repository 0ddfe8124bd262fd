"""Compute what a select takes only where it does: a branch of a batch only if some row takes it,
what a step selects every tenth time only in those steps.

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
rarely, an event, a correction: most often no row takes the branch. ``where(t % 10 == 0, f(x), x)``
computes `f` in each step; here, each case becomes a branch. Sound when

1. only selects by one truth value, or by one for each row, read what the branch computes. Where no
   row takes it, they give the other case, which has the type of the select. In a batch, that is not
   a constant: a constant marks a mask, which some row always takes;
2. nothing in the branch has effects or communicates, and neither XLA nor a type divides the rows
   over devices: these would ask each other, and XLA may insert collectives into the branch;
3. nothing reads the selects before the last of them; selects by other truth values are ops like
   any.

It fires only if the branch takes so much longer than the question and the other case that it is
worth asking even if some row always takes it; or if it is known which steps of a loop take which
case, and they save more than asking takes. One truth value is looked at in loops only. It does not
fire where a loop skips whole steps (`exit-loop-early` asks there), nor in a batch in a step of a
`while`, where the loop asks. Windows of carried arrays are read outside: XLA writes these in place.
Source: https://github.com/jax-ml/jax/issues/8409, https://github.com/ott-jax/ott/issues/232.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.steps.selected_work import (
    choices,
    is_asked,
    is_read_before,
    made_where_read,
    only_for,
    predicate_of,
    share_of_steps,
)
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.builders.steps.any_row import any_row
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import has_divided_rows
from jaxpr_opt.ir.graph import Op, Phase, Region, Scan, Value, While
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import is_broadcast


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
class SkipUntakenBranches(Pass[Untaken]):
    """A case that few rows of a batch take -> a branch."""

    name: ClassVar[str] = "skip-untaken-branches"
    whole_arrays: ClassVar[bool] = True  # (2)
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = frozenset({"select_n"})
    rows: ClassVar[bool] = True

    def find(self, op: Op) -> Iterator[Untaken]:
        predicate = predicate_of(op)
        if predicate is None or op.region is None or is_asked(predicate, op):
            return
        alike = choices(predicate, op.region)
        if alike[-1] is not op:
            return
        selects = tuple(each for each in alike if not is_read_before(each, op))  # (3)
        if not predicate.shape:
            selects = tuple(each for each in selects if not _is_scalar(each))
        parts = [only_for(selects, case, op.region) for case in (0, 1)]
        if not predicate.shape and (share := share_of_steps(predicate, op)) is not None:
            saved = _seconds(parts[0]) * share + _seconds(parts[1]) * (1 - share)
            if cost_model().is_worth_branches(saved, _nbytes(selects)):
                says = (
                    f"{len(parts[0] + parts[1])} ops run only in steps that take what they compute"
                )
                yield Untaken(op, says, predicate, 1, selects, parts[1], parts[0], about=op.result)
            return
        for case in (0, 1):
            ops, others = parts[case], parts[1 - case]
            if all(map(is_broadcast, ops)):
                continue
            if cost_model().is_worth_asking(ops, predicate, _nbytes(selects)):
                says = f"{len(ops)} ops run only where some row takes what they compute"
                yield Untaken(op, says, predicate, case, selects, ops, others, about=op.result)

    def refuse(self, match: Untaken) -> str | None:
        loop, is_batch = match.op.parent, bool(match.predicate.shape)
        if has_divided_rows(match.predicate, match.op):  # (2)
            return "XLA may divide the rows over devices, which would ask each other"
        for each in match.selects:
            other = each.operands[2 - match.case]
            for value in (other,) if is_batch else each.operands[1:]:
                if value.aval != each.result.aval:  # (1)
                    case, selected = value.exact_type, each.result.exact_type
                    return f"the other case is a {case}, what is selected a {selected}"
            if is_batch and uniform(other) is not None:  # (1)
                return "the other case is a constant, as in a mask: some row always takes it"
        if is_batch and isinstance(loop, While):
            return "while the loop runs, some row takes the branch"
        if isinstance(loop, Scan) and find_skip(loop) is not None:
            return "the loop skips whole steps"
        if not is_batch and share_of_steps(match.predicate, match.op) is not None:
            return None
        rest = cost_model().run(match.others)
        if not cost_model().is_worth_asking(
            match.ops, match.predicate, _nbytes(match.selects), rest
        ):
            return "the other case takes as long"
        return None

    def rewrite(self, match: Untaken, rw: Rewriter) -> None:
        last, is_batch = match.op, bool(match.predicate.shape)
        assert last.next is not None
        end = last.next
        negated = match.case == 0
        some = rw.insert(lambda p: any_row(p, not negated), match.predicate, before=end)
        taken, otherwise = rw.new_region(), rw.new_region()
        for op in (*match.ops, *(match.selects if is_batch else ())):
            rw.move(op, taken.terminator)
        if not is_batch:
            for op in match.others:
                rw.move(op, otherwise.terminator)
            for ops, region in ((match.ops, taken), (match.others, otherwise)):
                _make_inside(ops, region, last, rw)
        results = [each.result for each in match.selects]
        mine = results if is_batch else [each.operands[1 + match.case] for each in match.selects]
        rw.set_outputs(taken, mine)
        rw.set_outputs(otherwise, [each.operands[2 - match.case] for each in match.selects])
        cond = rw.new_cond(some, [otherwise, taken], like=last, before=end)
        for old, new in zip(results, cond.results, strict=True):
            rw.replace(old, new, lambda use: not taken.reads(use))
        for each in () if is_batch else match.selects:
            rw.erase(each)


def _make_inside(ops: Sequence[Op], branch: Region, last: Op, rw: Rewriter) -> None:
    """Let a branch make what XLA would have made where these ops read it."""
    again = made_where_read(ops, last.region) if ops else []
    for old, new in rw.clone(again, {}, ops[0] if ops else last).items():
        rw.replace(old, new, branch.reads)


def _is_scalar(select: Op) -> bool:
    """Whether what is selected is computed from numbers in registers alone."""
    assert select.region is not None
    ops = [op for case in (0, 1) for op in only_for([select], case, select.region)]
    values = [value for op in (select, *ops) for value in (*op.results, *op.operands)]
    return all(cost_model().is_no_line(value.nbytes) for value in values)


def _seconds(ops: Sequence[Op]) -> float:
    model = cost_model()
    return max(model.run(ops), model.repeated(ops)) if ops else 0.0


def _nbytes(selects: Sequence[Op]) -> int:
    return sum(each.result.nbytes for each in selects)
