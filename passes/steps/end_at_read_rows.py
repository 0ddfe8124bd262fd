"""End a loop after the last row that is read of what it stacks.

Before::

    h, ys = scan[n] carry(h=h0) xs(x=xs) {
      h1 = f h x
      yield carry(h1) ys(h1)
    }
    s = select_n (lt iota length) 0.0 (log ys)

After::

    last = reduce_max(where(lt iota length, iota + 1, 0))
    i, h, ys = while carry(i=0, h=h0, ys=undefined) { lt i last } {
      h1 = f h xs[i]
      yield i + 1, h1, write ys[i] h1
    }
    s = select_n (lt iota length) 0.0 (log ys)

A network runs over a padded sequence, and a mask drops its losses after the loop,
``jnp.where(mask, losses, 0).sum()``; or only the output of the last word is read,
``outputs[length - 1]``. Nothing reads the rows of later steps. Sound when

1. nothing reads what the steps that are not run would leave in the carries. Counters may be read,
   and so may carries that a skipped step keeps, if it is known before the loop which steps are
   skipped (`find_skips`, `find_ends`): then the loop ends after the last step taken, or row read;
2. each op that reads the stacks computes row `i` of its result from row `i`, up to the op that
   drops or picks rows;
3. the mask that drops rows, or the index that picks them, can be computed before the loop;
4. an index is in range, as JAX clamps it, and a whole number of 32 bits, which counts all rows;
5. a step has no effects, and devices do not wait for each other in it;
6. nothing differentiates the loop any more (the final phase): a `while` has no transpose;
7. predicates that are computed before the loop, all at once, round as in each step;
8. a loop that reads the stacks is transposed and runs in reverse, and step `i` reads row `i`;
9. with rows of zeros for its cotangents, a step of that leaves its carries as they began, counters
   apart, and stacks a number. Then it begins with the last row, too;
10. its cotangents are zeros but in the rows that a mask chooses, or where an index says that they
    are written, both as in (3) and (4);
11. it begins after a number of rows that the other loop has made, if both run several at once.

Cost: the masks are tested once. It fires if a mask compares whole numbers, or is an argument, if a
step takes longer than asking whether to go on, and if all steps take much longer than the test.
Source: padded sequences, whose loss is computed after the scan, as in `flax.nnx.RNN`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import ClassVar

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.rows.row_readers import made_before
from jaxpr_opt.analysis.steps.questions import rounds_alike, steps_a_question, steps_asked_at_once
from jaxpr_opt.analysis.steps.read_ends import MaskedRows, PickedRows, Place, RowsBack, read_ends
from jaxpr_opt.analysis.steps.skips import Skip, all_taken, as_begun, find_ends, find_skips
from jaxpr_opt.builders.steps.early_exit import Plan, stop_early
from jaxpr_opt.builders.steps.taken_steps import last_step
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Phase, Scan, Value, is_sized
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import can_move


@dataclass(frozen=True, slots=True, eq=False)
class ReadRows(Match):
    """A loop of whose rows only the first are read."""

    op: Scan
    ends: tuple[Place, ...]
    back: dict[Scan, Skip]
    """The loops that read them in reverse, each with the steps that it need not take."""


@dataclass(frozen=True)
class EndAtReadRows(Pass[ReadRows]):
    """Scan of whose stacks only the first rows are read -> while loop that makes those."""

    name: ClassVar[str] = "end-at-read-rows"
    phase: ClassVar[Phase] = "final"  # (6)
    whole_arrays: ClassVar[bool] = True
    after: ClassVar[tuple[After, ...]] = (
        After("exit-loop-early", "a loop that says itself which steps it takes fills other rows"),
    )
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[ReadRows]:
        if op.reverse or not is_sized((op.length,)) or op.length < 2:
            return
        found = [read_ends(op, stack) for stack in op.stacks if stack.result.uses]
        ends = [end for each in found for end in each or ()]
        if ends and all(each is not None for each in found):  # (2, 3, 4)
            back = [end for end in ends if isinstance(end, RowsBack)]  # (8, 9, 10)
            places = [end for end in ends if not isinstance(end, RowsBack)]
            told = tuple(dict.fromkeys([*places, *(at for each in back for at in each.ends)]))
            what = f"a loop of {op.length} steps ends after the last row that is read"
            yield ReadRows(op, what, told, {each.skip.scan: each.skip for each in back})

    def refuse(self, match: ReadRows) -> str | None:
        scan = match.op
        loops = (scan, *match.back)
        if not all(can_move(op) for loop in loops for op in loop.body.ops):
            return "a step has effects, or devices wait for each other in it"  # (5)
        if any(is_sharded(result) for loop in loops for result in loop.results):
            return "its rows may be divided over devices"
        skip = _taken(scan)
        if isinstance(skip, str):  # (1)
            return skip
        if steps_asked_at_once(scan) is None:
            return "it asks to be unrolled"
        every = steps_a_question(scan, all_taken(scan))
        if every is None:
            return "a step takes no longer than asking whether to go on"
        if any(steps_asked_at_once(loop, every) != every for loop in match.back):  # (11)
            return "the loop back asks to be unrolled"
        asked = [_told(end) for end in match.ends] + ([skip.predicate] if skip else [])
        if not cost_model().is_worth_masks(scan, asked):
            return "testing all its masks takes about as long as its steps"
        return None

    def rewrite(self, match: ReadRows, rw: Rewriter) -> None:
        scan = match.op
        every = steps_a_question(scan, all_taken(scan)) or 1
        for end in match.ends:
            for op in made_before(_told(end), scan) or ():
                rw.move(op, scan)
        skip = _taken(scan)
        found = [last_step(skip, rw)] if isinstance(skip, Skip) else []
        found += [
            rw.insert(partial(_rows, end, scan.length), _told(end), before=scan)
            for end in dict.fromkeys(match.ends)
        ]
        last = rw.insert(lambda *each: reduce(lax.max, each), *found, before=scan)
        unread = {stack.result for stack in scan.stacks}
        rows = stop_early(Plan(all_taken(scan), every, last, unread), rw)
        for skip in match.back.values():
            stop_early(Plan(skip, every, rows), rw)


def _told(end: Place) -> Value:
    return end.mask if isinstance(end, MaskedRows) else end.places


def _taken(scan: Scan) -> Skip | str | None:  # (1)
    """The steps that carries need which are read after a loop; none if no such carry is; or why
    that is not known.
    """
    counting = {carry.param for carry, _ in as_begun(scan, {})[1]}
    read = [c for c in scan.carries if c.result.uses and c.param not in counting]
    skips = [each for each in (*find_skips(scan), *find_ends(scan)) if isinstance(each, Skip)]
    if any(skip.kind != "upfront" for skip in skips):
        return "its predicates are known in its steps only"
    if not read:
        return None
    if not skips:
        return f"what {read[0].param.label} is at the end is read"
    if not rounds_alike(skips[0]):  # (7)
        return "its predicates may round differently when computed all at once"
    return skips[0]


def _rows(end: Place, length: int, told: jax.Array) -> jax.Array:
    """The number of rows up to the last one that is read."""
    if isinstance(end, PickedRows):
        at = told if end.component is None else lax.index_in_dim(told, end.component, -1)
        at = lax.clamp(np.int32(0), at, np.int32(length - end.size))  # (4)
        return lax.add(lax.reduce_max(at, range(at.ndim)), np.int32(end.size))
    chosen = lax.eq(lax.convert_element_type(told, np.int32), np.int32(end.case))
    rows = lax.reduce_or(chosen, [axis for axis in range(told.ndim) if axis != end.axis])
    after = lax.add(np.int32(1), lax.iota(np.int32, length))
    none = lax.full((length,), 0, np.int32)
    return lax.reduce_max(lax.select(rows, after, none), (0,))
