"""Make the step of a batch a branch, so that nothing is kept of steps that every row skips.

Before::

    h_n, r = scan[n] carry(h=h_0) xs(x=xs) {
      p = lt t lengths                     # one predicate a row of the batch
      v = step(h, x)
      yield carry(select p v h) ys(v)
    }

After::

    h_n, r = scan[n] carry(h=h_0) xs(x=xs) {
      p = lt t lengths
      d, u = cond (reduce_or p) { v = step(h, x); yield select p v h, v } else { h, undefined }
      yield carry(d) ys(u)
    }

Under `vmap` a skipped step is a `select`: it is computed, and its residuals are stacked, also when
no row of the batch takes it.  As a branch it can be left out, its residuals are unspecified, and
the loop may stop early.

Sound when

1. the scan skips under a batched predicate `p`: where `p` is false everywhere, every carry keeps
   its value;
2. whatever reads the stacked value reads it row by row, in loops that skip under the same
   predicate and whose stacks then do not depend on it, so that rows of steps that are skipped are
   never looked at;
3. a step has no effects and does not communicate; where XLA may insert collectives into it, all
   devices have the same predicate;
4. nor has what a step of those loops makes of the row, which also ends whatever the row holds.

What a step writes into a buffer that a skipped step leaves alone is written after the branch, since
XLA copies what a branch writes into.

It fires only if a stack would otherwise keep the loop from stopping early, and not where XLA may
divide the rows of the batch over devices, which would have to ask each other in every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.access import Access
from jaxpr_opt.analysis.assume import Assumed, Known, Splat
from jaxpr_opt.analysis.devices import is_divided
from jaxpr_opt.analysis.expressions import same_expression
from jaxpr_opt.analysis.skipped_rows import SkippedRow, skipped_row
from jaxpr_opt.analysis.skips import Skip, find_skip, predicate_source
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.engine.ir import Op, Region, Scan, Stack, Value, While, backward_slice, depending_on
from jaxpr_opt.engine.rewriter import Rewriter
from jaxpr_opt.engine.traits import can_move, may_depend_on


@dataclass(frozen=True, slots=True, eq=False)
class BatchedSkip(Match):
    """A scan that skips under a batched predicate, and the stacks that a skipped step computes
    for nobody.
    """

    skip: Skip
    stacks: tuple[Stack, ...]


@dataclass(frozen=True)
class IsolateSkippedSteps(Pass):
    """Step of a batch that some row takes -> branch."""

    name: ClassVar[str] = "isolate-skipped-steps"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Op) -> Iterator[BatchedSkip]:
        assert isinstance(op, Scan)
        skip = find_skip(op) if op.stacks else None
        if skip is not None and skip.predicate.shape != ():  # (1)
            computed = tuple(s for s in op.stacks if isinstance(skipped_row(skip, s), str))
            if computed:
                yield BatchedSkip(
                    op, "a step that every row of the batch skips becomes a branch", skip, computed
                )

    def refuse(self, match: BatchedSkip) -> str | None:
        skip = match.skip
        if not all(map(can_move, skip.scan.body.ops)):  # (3)
            return "a step has effects or communicates"
        if not may_depend_on(skip.predicate, skip.scan.body.ops, skip.scan):  # (3)
            return "XLA may let a step communicate, so every device must take part in it"
        if is_divided(skip.scan):
            return (
                "XLA may divide the rows of its predicate over devices, which would ask each other"
            )
        for stack in match.stacks:
            for use in stack.result.uses:
                if not _unread_when_skipped(use.op, stack, skip):
                    return (
                        f"{stack.result.name or stack.result.type} is read where no step was taken"
                    )
        return None

    def rewrite(self, match: BatchedSkip, rw: Rewriter) -> None:
        skip, scan = match.skip, match.skip.scan
        body, end = scan.body, scan.body.terminator
        outside = _written_outside(skip)
        stays = {*skip.slice, *(c.next.op for c, _ in skip.counters), *_places(outside, body)}
        moved = [op for op in body.ops if op not in stays and not op.is_terminator]
        outputs = body.outputs
        kept = {c.next: c.param for c in skip.kept}
        rows = {s.value: skipped_row(skip, s) for s in scan.stacks if s.value not in kept}
        rows |= {w.value: _number(skip.skipped[w.value]) for w in outside}
        taken, skipped = rw.new_region(), rw.new_region()
        made = {v for op in moved for v in op.results}
        through = [v for v in dict.fromkeys((*outputs, *rows)) if v in made]
        for op in moved:
            rw.move(op, taken.terminator)
        rw.set_outputs(taken, through)
        instead = [
            _instead(skip, v, rows[v], skipped.terminator, rw) if v in rows else kept[v]
            for v in through
        ]
        rw.set_outputs(skipped, instead)
        some = rw.insert(
            lambda p: _any(p if skip.taken_when else lax.bitwise_not(p)), skip.predicate, before=end
        )
        cond = rw.new_cond(some, [skipped, taken], like=scan, before=end)
        results = dict(zip(through, cond.results, strict=True))
        rw.set_outputs(body, [results.get(v, v) for v in outputs])
        for write in outside:
            rw.move(write.op, end)
            value = write.value
            rw.replace(value, results.get(value, value), lambda use: use.op is write.op)  # noqa: B023


def _written_outside(skip: Skip) -> list[Access]:
    """Writes that only a step's end reads: XLA copies what a branch writes into."""
    end = skip.scan.body.terminator
    return [w for w in skip.blanks if all(use.op is end for use in w.op.result.uses)]


def _places(writes: Sequence[Access], body: Region) -> set[Op]:
    """Writes, and what computes where they write."""
    where = [v for write in writes for v in write.indices]
    return {w.op for w in writes} | set(backward_slice(where, lambda v: v.region is not body))


def _number(known: Known) -> SkippedRow:
    assert isinstance(known, Splat)
    return SkippedRow(constant=known)


def _any(p: jax.Array) -> jax.Array:
    return lax.reduce_or(p, axes=tuple(range(p.ndim)))


def _unread_when_skipped(user: Op, stack: Stack, skip: Skip) -> bool:  # (2)
    """Condition 2, for one reader."""
    if not isinstance(user, Scan) or any(c.init is stack.result for c in user.carries):
        return False
    other = find_skip(user)
    if other is None or not _same_predicate(other, skip):
        return False
    rows = {s.param for s in user.streams if s.operand is stack.result}
    if any(map(_acts, depending_on(rows, user.body.ops))):  # (4)
        return False
    return all(isinstance(other.skipped[s.value], Splat) for s in user.stacks)


def _acts(op: Op) -> bool:  # (4)
    """Whether it matters what an op reads, even if nobody reads what it makes."""
    return not can_move(op) or any(isinstance(each, While) for each in op.walk())


def _same_predicate(other: Skip, skip: Skip) -> bool:  # (2)
    """Whether the other loop's predicate is a row of a stack of this one's, or computed alike
    from the same rows.
    """
    stream = other.scan.stream_of(predicate_source(other.predicate))
    stack = skip.scan.stack_of(stream.operand) if stream is not None else None
    if stack is not None:
        assert stream is not None
        row = skip.skipped[stack.value]
        facts = {stream.param: bool(row.value)} if isinstance(row, Splat) else {}
        known = Assumed(other.scan.body, facts)[other.predicate]
        return known == Splat(np.bool_(not other.taken_when))
    rows = {s.operand: s.param for s in other.scan.streams}
    renamed = {s.param: rows[s.operand] for s in skip.scan.streams if s.operand in rows}
    return (
        same_expression(skip.predicate, other.predicate, renamed)
        and other.taken_when == skip.taken_when
    )


def _instead(skip: Skip, value: Value, row: SkippedRow | str, end: Op, rw: Rewriter) -> Value:
    """What a skipped step stacks for `value`; nothing in particular where nobody reads it."""
    if isinstance(row, str) or row.is_unspecified:
        return rw.undefined(value.aval, before=end)
    false = np.full(skip.predicate.shape, not skip.taken_when)
    if row.value is not None:
        mapping: dict[Value, Value] = {
            skip.predicate: rw.constant(false, skip.predicate.aval),
        }
        rw.clone(row.ops, mapping, end)
        return mapping.get(row.value, row.value)
    constant = not skip.taken_when if row.constant is None else row.constant.value
    return rw.typed(lambda: lax.full(value.shape, constant, value.dtype), value.aval, before=end)
