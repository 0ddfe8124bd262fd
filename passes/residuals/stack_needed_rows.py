"""Stack the rows that are needed, not one for each step.

Before::

    h, r = scan[100] carry(c=z) xs(t=iota) {
      d, o = cond t % 10 == 0 { f c } else { yield c, undefined }
      yield carry(d) ys(o)
    }
    g = scan[100, reverse] carry(a=ct) xs(t=iota, o=r) {
      b = cond t % 10 == 0 { h a o } else { yield a }
      yield carry(b)
    }

After::

    h, r = scan[100] carry(c=z, b=undefined[11]) xs(t=iota, k=(iota + 9) / 10) {
      d, o = cond t % 10 == 0 { f c } else { yield c, undefined }
      e = dynamic_update_slice b o k
      yield carry(d, e)
    }
    g = scan[100, reverse] carry(a=ct) xs(t=iota, k=(iota + 9) / 10) {
      b = cond t % 10 == 0 { o = dynamic_slice r k; h a o } else { yield a }
      yield carry(b)
    }

What a step does every tenth time is a branch, and JAX stores in each step what the branch leaves
for the gradient: a target network that is copied now and then, layers of several kinds in a scan, a
slow state. Here a step that does not leave a needed row writes into the place of the next needed
row, which is overwritten before it is read. Sound when the rows that are left out are not needed:

1. a row of a step in which the value is unspecified is not needed;
2. nor is the row of a step in which no reader reads it: all its uses are in branches, and it is
   known at compile time which steps take them;
3. a step in which the value is what it was in the step before shares its row: a carry that a
   branch, known likewise, gives back, and what is computed from such carries and outer values;
4. the stack is read only row by row, in loops or nests of loops of as many steps; or by slices and
   gathers alone, of whole rows at places that are known and in range (``states[-1]``,
   ``samples[burn::20]``, ``states[::-1][:5]``, ``states[np.array([0, 50, 199])]``);
5. the rows of a slice are a slice of the needed rows, too, or of their reverse.

Cost: a number for each step, unless one row is needed; it fires if at most half of the rows are
needed, these are larger than a cache line, and storing the others takes longer than so many steps
of a loop that does nothing. A branch that is taken whenever a row is needed writes it; else each
step does, so not if a loop may stop early. After all other passes that look at stacks, and not
before JAX differentiates: the derivative of a stack is another stack.
Source: the residuals of `lax.cond` in `lax.scan`, https://github.com/jax-ml/jax/issues/8239.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.residuals.needed_rows import NeededRows, needed_rows
from jaxpr_opt.analysis.residuals.stack_consumers import Rows
from jaxpr_opt.analysis.steps.skips import Skip, find_skips
from jaxpr_opt.analysis.values.step_numbers import Numbers, numbers_at
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.slicing import read_row, write_row
from jaxpr_opt.builders.residual_transfer import carried_along, drop_stacks
from jaxpr_opt.builders.step_numbers import numbered
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Phase, Scan, Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Needed(Match):
    """A stack, and which of its rows are needed."""

    op: Scan
    stack: Stack
    rows: NeededRows


@dataclass(frozen=True)
class StackNeededRows(Pass[Needed]):
    """A stack with a row for each step -> one with the rows that are needed."""

    name: ClassVar[str] = "stack-needed-rows"
    phase: ClassVar[Phase] = "differentiated"
    unspecified: ClassVar[bool] = True
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[Needed]:
        for stack in op.stacks:
            is_row = dtypes.is_of_bytes(stack.value.dtype)
            if is_row and not cost_model().is_no_line(stack.value.nbytes):
                rows = needed_rows(op, stack)  # (1), (2), (3), (4)
                if rows is not None:
                    says = f"{rows.count} rows of {stack.value.label} are stored, not {op.length}"
                    yield Needed(op, says, stack, rows, about=stack.result)

    def refuse(self, match: Needed) -> str | None:
        scan = match.op
        row, count = match.stack.value.nbytes, match.rows.count
        if cost_model().is_most(count, scan.length):
            return "most of its rows are needed"
        saved = cost_model().kept(row * (scan.length - count), row * scan.length)
        if count > 1 and saved < cost_model().loop_seconds(scan.length, 0):
            return "finding the rows takes as long as storing all"
        if not match.rows.writers and any(map(_may_end, find_skips(scan))):
            return "steps that do nothing would write"
        return None

    def rewrite(self, match: Needed, rw: Rewriter) -> None:
        scan, stack, rows = match.op, match.stack, match.rows
        array = _written(scan, stack, rows, rw)
        for way, row, regions in rows.reads:
            last = way[-1]
            assert isinstance(last, Rows)
            there = carried_along(array, way[:-1], rw)
            at = numbered(rows.numbers, last.scan, rw)
            for region in regions:
                first = region.first
                assert first is not None
                found = rw.typed(read_row, row.aval, there, at, before=first)
                rw.replace(row, found, where=region.reads)
        for op, part in rows.picks:
            rw.replace(op.result, _picked(op, array, part, rw))
            rw.erase_unread(op)
        drop_stacks(scan, [stack], [way for way, *_ in rows.reads], rw)


def _picked(op: Op, array: Value, rows: Numbers, rw: Rewriter) -> Value:
    """The rows that a slice or gather reads, among those that are needed."""
    if op.name == "gather":
        index = op.operands[1]
        places = rw.array(rows.astype(index.dtype).reshape(index.shape))
        mapping = {op.operands[0]: array, index: places}
        rw.clone([op], mapping, op)
        return mapping[op.result]
    return rw.typed(partial(_slice, rows), op.result.aval, array, before=op)


def _slice(rows: Numbers, array: jax.Array) -> jax.Array:
    every = int(rows[1] - rows[0]) if len(rows) > 1 else 1
    low, high = int(rows.min()), int(rows.max()) + 1
    found = lax.slice_in_dim(array, low, high, abs(every))
    return found if every > 0 else lax.rev(found, (0,))


def _may_end(skip: Skip | str) -> bool:
    """Whether a loop may stop early, where only the data tell."""
    return isinstance(skip, Skip) and numbers_at(skip.predicate, skip.scan) is None


def _written(scan: Scan, stack: Stack, rows: NeededRows, rw: Rewriter) -> Value:
    """The array of a stack's rows, which the loop carries."""
    aval = rw.stacked_aval(stack.value, rows.count)
    at = numbered(rows.numbers, scan, rw)
    array = rw.carry(scan, rw.undefined(aval, before=scan), stack.result.name)

    def write(value: Value, end: Op) -> Value:
        return rw.typed(write_row, aval, array.param, value, at, before=end)

    written = {branch: write(value, branch.terminator) for branch, value in rows.writers}
    if written:
        cond = next(iter(written)).owner
        assert isinstance(cond, Cond)
        left = rw.new_value(aval)
        cases = tuple(written.get(branch, array.param) for branch in cond.branches)
        rw.set_cond(cond, [*cond.outcomes, Outcome(left, cases)])
    else:
        left = write(stack.value, scan.body.terminator)
    rw.set_last_next(scan, left)
    return array.result
