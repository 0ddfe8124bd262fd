"""Update only the rows where a gradient is nonzero, of a table and of the optimizer's state.

Before::

    p_n, a_n = scan[n] carry(p=p_0, a=a_0) xs(i=is, ...) {
      z = broadcast_in_dim 0.0
      g = scatter-add z i u                  # the gradient: zero but for rows
      s = mul g g
      b = add a s
      r = sqrt b
      d = div g r
      q = sub p d
      yield carry(q, b)
    }

After::

    o = ...                                  # whether a zero gradient changes nothing
    p_n, a_n = scan[n] carry(p=p_0, a=a_0, k=o) xs(i=is, ...) {
      ...                                    # rows of p and a are read, changed, written
      q, b = while not k { ... }             # or all elements are computed, as before
      yield carry(q, b, l)
    }

Adagrad; clipped gradients; moments that change only where there is a gradient; and a table that a
step reads in two places (skip-gram, matrix factorization with one table), so that two ops add to
its gradient. Sound when

1. every op that depends on the gradient is elementwise, and all of them compute the next arrays of
   carries, from those arrays, from arrays of the same shape from outside of the loop, and from
   scalars. A scalar that changes from step to step only scales
   (`jaxpr_opt.analysis.windows.states`);
2. an element whose gradient is zero keeps its value. A quotient of zero by zero, or a product of
   zero with infinity, would change it. The program tests all elements before the loop, the changed
   rows after each step, and the scalars in each step; once a test fails, every step computes all
   elements. No test is needed where the gradient passes only known finite numbers;
3. windows are rows: equal or disjoint. Each row sums all that belongs to it, in the order of the
   rows, op by op, as the gradient does, and equal rows get equal writes.

Cost: the rows instead of the arrays, and the test before the loop, which takes as long as a step.
Tables below some 30 kB are computed as fast as some twenty ops are started, and stay.
Only in the final phase, and if nothing reads the arrays after the gradient is known, so that XLA
updates them in place. Not if a gradient is only added to: XLA adds to the rows of the array itself,
in 0.4 of the time (f32[20011,16], 16 rows of one op or of two, CPU, jax 0.10 and 0.12).
Source: sparse gradients of embeddings, `torch.optim.Adagrad` with `sparse=True`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from jax import lax

from jaxpr_opt.analysis.windows.states import States, states
from jaxpr_opt.builders import state_rows
from jaxpr_opt.builders.at_most_once import at_most_once
from jaxpr_opt.builders.repeated_rows import has_rows, is_alike, is_less
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.work import embedded
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import Carry, Op, Phase, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class Update(Match):
    """A loop, and a group of arrays that a sparse gradient changes; or why not by rows only."""

    states: States | str


@dataclass(frozen=True)
class UpdateStates(Pass):
    """Elementwise update of carried arrays by a sparse gradient -> update of its rows."""

    name: ClassVar[str] = "update-states"
    after: ClassVar[tuple[After, ...]] = (
        After("update-rows", "it needs no question of which elements stay"),
    )
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    needs: ClassVar[frozenset[str]] = frozenset({"scatter-add"})

    def find(self, op: Op) -> Iterator[Update]:
        assert isinstance(op, Scan)
        for found in states(op):
            says = "a sparse gradient updates rows"
            if isinstance(found, States):
                few = bytes_text(sum(piece.nbytes for piece in found.pieces))
                names = ", ".join(carry.param.label for carry in found.carries)
                says = (
                    f"{few} of {names} are updated, not {bytes_text(found.carries[0].param.nbytes)}"
                )
            yield Update(op, says, found)

    def refuse(self, match: Update) -> str | None:
        found = match.states
        if isinstance(found, str):  # (1)
            return found
        if not all(map(has_rows, found.pieces)):  # (3)
            return "windows may overlap in part"
        if not all(is_alike(found.pieces[0], piece) for piece in found.pieces):  # (3)
            return "ops add windows of several shapes"
        if any(c.next.aval != c.param.aval for c in found.carries):
            return "the step changes the type of the array"
        if not found.is_plain and found.scan.length < 2:
            return "one step takes as long as the test of all elements before the loop"
        if all(map(_is_in_place, found.carries)):
            return "XLA adds to the rows in place"
        if not is_less([found.pieces], found.carries[0].param.nbytes):
            return "the rows together are as large as the array"
        if not _is_large(found):
            return "all elements are computed as fast as the ops for rows are started"
        return None

    def rewrite(self, match: Update, rw: Rewriter) -> None:
        found, scan = match.states, match.op
        assert isinstance(found, States) and isinstance(scan, Scan)
        operands, end = state_rows.operands(found), scan.body.terminator
        made = partial(state_rows.changed, found)
        if found.is_plain:  # (2)
            *arrays, _, _ = rw.insert_many(made, rw.scalar(True, bool), *operands, before=end)
        else:
            arrays = _guarded(found, operands, rw)
        for carry, array in zip(found.carries, arrays, strict=True):
            rw.replace(carry.next, array, lambda use: use.op is scan.body.terminator)
        for op in (*reversed(found.ops), *(piece.op for piece in found.pieces)):
            rw.erase(op)


def _is_in_place(carry: Carry) -> bool:
    """Whether the next array is the carried one plus zeros with windows in them."""
    op = carry.next.op
    return op is not None and op.name in SUMS and any(map(embedded, op.operands))


def _is_large(found: States) -> bool:
    """Whether moving the arrays takes longer than starting the ops that read, sum, test and write
    rows: four for each array and each piece, and a loop.
    """
    prices, arrays = cost_model(), len(found.carries) + len(found.outer)
    started = prices.started(4 * (arrays + len(found.pieces) + 1))
    size = found.carries[0].param.nbytes
    return prices.moved(size * arrays) >= prices.doubtful(started)


def _guarded(found: States, operands: Sequence[Value], rw: Rewriter) -> list[Value]:
    """The next arrays, updated by rows as long as no other element can change (2)."""
    scan, end = found.scan, found.scan.body.terminator
    given = [*found.outer, *found.scalars.values(), *(carry.init for carry in found.carries)]
    start = rw.insert(partial(state_rows.stays_at_start, found), *given, before=scan)
    flag = rw.carry(scan, start, "sparse").param
    *arrays, up, still = rw.insert_many(
        partial(state_rows.changed, found), flag, *operands, before=end
    )
    rw.set_last_next(scan, still)
    return _all_or_none(found, up, operands[: -len(arrays)], arrays, rw)


def _all_or_none(
    found: States, flag: Value, read: Sequence[Value], arrays: Sequence[Value], rw: Rewriter
) -> list[Value]:
    """The arrays as they are if the flag is set, else with all elements computed."""
    end = found.scan.body.terminator

    def made(old: Sequence[Value], before: Op) -> Sequence[Value]:
        return rw.insert_many(partial(state_rows.all_changed, found), *read, *old, before=before)

    ask = rw.insert(lax.bitwise_not, flag, before=end)
    return at_most_once(ask, arrays, made, found.scan, end, rw)
