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
its gradient; counts, means and marks of rows (lazy Adam, memories of nodes, rates by visits). The
arrays are carried by a loop, or arguments of the program. Sound when

1. every op that depends on the gradient is elementwise, or, if rows lie along the first axes, lays
   out each row by itself, or picks of it; and all of them compute the next arrays, from those
   arrays, from arrays with the same rows from outside of the loop, from one row for all, and from
   scalars. A scalar that changes from step to step only scales, or chooses between what is the same
   where the gradient is zero, or is left out there (`jaxpr_opt.analysis.in_place.states`). In place
   of a scalar there may be a number for each array of a batch, or for each column;
2. an element whose gradient is zero keeps its value. A quotient of zero by zero, or a product of
   zero with infinity, would change it. The program tests the scalars in each step; and, if the
   gradient is combined with arrays that are not finite whatever they are made of, as those of optax
   are, all elements before the loop, and the changed rows after each step. If a test of scalars
   fails, that step computes all elements; else, every later step does;
3. windows are rows: equal or disjoint; of several arrays, those along their first axes. Each row
   sums all that belongs to it, in the order of the rows, op by op, as the gradient does, and equal
   rows get equal writes. What is set, not added, is one number, or no two windows are the same.

Cost: the rows instead of the arrays, and the test before the loop, which takes as long as a step;
so an argument is updated only if that test is not needed. Tables below some 30 kB are computed as
fast as some twenty ops are started, and stay; below 10 kB if several ops add to the gradient, each
to an array of its own (8 ops, a row each, 32 kB: 0.14 of the time). Only in the final phase, and if
nothing reads the arrays after the gradient is known, so that XLA updates them in place. Not if a
gradient is only added to: XLA does so in place. With a number for each row: 0.07 to 0.24.
Source: sparse gradients of embeddings, `torch.optim.Adagrad` with `sparse=True`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.in_place.states import States, Updated, states
from jaxpr_opt.analysis.windows.window_primitives import WRITES
from jaxpr_opt.builders.in_place import state_rows
from jaxpr_opt.builders.in_place.at_most_once import at_most_once
from jaxpr_opt.builders.sparse.repeated_rows import has_rows, is_alike, is_less, told_apart
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.work import embedded
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import Op, Phase, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class SparseStatesUpdate(Match):
    """A group of arrays that a sparse gradient changes; or why not by rows only."""

    states: States | str


@dataclass(frozen=True)
class UpdateStates(Pass[SparseStatesUpdate]):
    """Elementwise update of arrays by a sparse gradient -> update of its rows."""

    name: ClassVar[str] = "update-states"
    after: ClassVar[tuple[After, ...]] = (
        After("update-rows", "it needs no question of which elements stay"),
    )
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = WRITES

    def find(self, op: Op) -> Iterator[SparseStatesUpdate]:
        found = states(op)
        if found is None:
            return
        says = "a sparse gradient updates rows"
        if isinstance(found, States):
            few = bytes_text(sum(piece.nbytes for piece in found.pieces))
            names = ", ".join(array.param.label for array in found.arrays)
            says = f"{few} of {names} are updated, not {bytes_text(found.arrays[0].param.nbytes)}"
        yield SparseStatesUpdate(op, says, found)

    def refuse(self, match: SparseStatesUpdate) -> str | None:
        found = match.states
        if isinstance(found, str):  # (1)
            return found
        if not all(map(has_rows, found.pieces)):  # (3)
            return "windows may overlap in part"
        if not all(is_alike(found.pieces[0], piece) for piece in found.pieces):  # (3)
            return "ops add windows of several shapes"
        if any(array.next.aval != array.param.aval for array in found.arrays):
            return "the step changes the type of the array"
        if not found.is_plain and (found.scan is None or found.scan.length < 2):
            return "one step takes as long as the test of all elements before it"
        if not found.is_plain and found.chooses:  # (2)
            return "a truth value of the step chooses what is to be tested before the loop"
        if all(map(_is_in_place, found.arrays)):
            return "XLA adds to the rows in place"
        largest = max((array.param for array in found.arrays), key=lambda v: v.nbytes)
        if not is_less([found.pieces], _copied(found, [largest])):
            return "the rows together are as large as the array"
        if not _is_large(found):
            return "all elements are computed as fast as the ops for rows are started"
        return None

    def rewrite(self, match: SparseStatesUpdate, rw: Rewriter) -> None:
        found = match.states
        assert isinstance(found, States)
        end = found.body.terminator
        for op in found.before:
            assert found.scan is not None
            rw.move(op, found.scan)
        flag = _flag(found, rw) if not found.is_plain else rw.scalar(True, bool)  # (2)
        arrays = _updated(found, flag, rw)
        for each, array in zip(found.arrays, arrays, strict=True):
            rw.replace(each.next, array, lambda use: use.op is end)
        for op in (*reversed(found.ops), *(piece.op for piece in found.pieces)):
            rw.erase(op)


def _is_in_place(array: Updated) -> bool:
    """Whether the next array is the one before plus zeros with windows in them."""
    op = array.next.op
    return op is not None and op.name in SUMS and any(map(embedded, op.operands))


def _copied(found: States, arrays: Sequence[Value]) -> int:
    """The bytes of arrays, of which windows are moved instead; an argument may be copied."""
    nbytes = sum(array.nbytes for array in arrays)
    return cost_model().more_than_a_copy(nbytes) if found.scan is None else nbytes


def _is_large(found: States) -> bool:
    """Whether moving the arrays, and that of each op that adds up, outlasts the ops for rows."""
    read = [*(each.param for each in found.arrays), *found.outer]
    pieces, model = found.pieces, cost_model()
    added = sum(p.result.nbytes for p in pieces[1:]) - len(pieces) * sum(p.nbytes for p in pieces)
    seconds = model.started_for_states(len(read), len(pieces)) + told_apart(pieces)
    return model.outlasts(_copied(found, read) + added, seconds)


def _flag(found: States, rw: Rewriter) -> Value:
    """Whether no other element can change (2), carried through the loop."""
    scan = found.scan
    assert scan is not None
    inits = [array.init for array in found.arrays if array.init is not None]
    given = [*state_rows.outer_operands(found), *inits]
    start = rw.insert(partial(state_rows.stays_at_start, found), *given, before=scan)
    return rw.carry(scan, start, "sparse").param


def _updated(found: States, flag: Value, rw: Rewriter) -> list[Value]:
    """The next arrays: updated by rows, or with all elements computed."""
    operands, end, count = state_rows.operands(found), found.body.terminator, len(found.arrays)

    def made(*given: jax.Array) -> list[jax.Array]:
        written, new, *flags = state_rows.changed(found, *given)
        return [*written, *new, *flags]

    *rows, up, still = rw.insert_many(made, flag, *operands, before=end)
    arrays, new = rows[:count], rows[count:]
    if not found.is_plain:
        assert found.scan is not None
        rw.set_last_next(found.scan, still)
    elif not found.factors:  # (2)
        return arrays

    def all_made(old: Sequence[Value], before: Op) -> Sequence[Value]:
        def fun(*given: jax.Array) -> list[jax.Array]:
            return state_rows.all_changed(found, given[:count], *given[count:])

        return rw.insert_many(fun, *new, *operands[:-count], *old, before=before)

    ask = rw.insert(lax.bitwise_not, up, before=end)
    return at_most_once(ask, arrays, all_made, found.pieces[-1].op, end, rw)
