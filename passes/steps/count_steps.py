"""Store how many steps were taken instead of one predicate per step.

Before::

    c_n, mask = scan[n] carry(c=c_0) {
      p = lt c bound
      d = cond p { step(c) } else { c }
      yield carry(d) ys(p)
    }

After::

    c_n, taken = scan[n] carry(c=c_0, k=0) { ...; yield carry(d, add k p) }
    mask = lt iota taken

and a loop that reads `mask` row by row compares its row number with `taken`. The predicates of the
transposed loop are then known to be true in a prefix only, so that it can merge with another loop,
or start where the forward loop stopped.

Sound when

1. the scan runs forward and skips under `p`, computed from carries that a skipped step keeps: once
   false, `p` stays false, so that it is true in the first `taken` rows and in no other;
2. the stacked value is `p` itself, converted or not, the same in every step taken and in every step
   skipped.

Source: jax#8239, whose transposed loops evaluate one predicate per step of the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.steps.assume import Assumed
from jaxpr_opt.analysis.steps.predicates import predicate_root
from jaxpr_opt.analysis.steps.skips import Skip, find_skip
from jaxpr_opt.analysis.steps.splats import Splat
from jaxpr_opt.analysis.values.linearity import carries_cotangents
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.steps.taken_steps import count_taken
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import Op, Scan, Stack, Stream, Value
from jaxpr_opt.ir.rewriter import Rewriter

Mask = Callable[[jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True, slots=True, eq=False)
class PredicateStacks(Match):
    """The stacks of the predicate under which a scan skips, perhaps converted, with what they hold
    for a step that is
    taken and for one that is skipped (condition 2).
    """

    op: Scan
    skip: Skip
    stacks: tuple[tuple[Stack, tuple[int, int]], ...]


@dataclass(frozen=True)
class CountSteps(Pass[PredicateStacks]):
    """Stacked predicates of a loop that stops for good -> the number of steps it took."""

    name: ClassVar[str] = "count-steps"
    after: ClassVar[tuple[After, ...]] = (
        After("collapse-loops", "a merged loop has one count of steps, a nest has several"),
    )
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[PredicateStacks]:
        masks = [
            s for s in op.stacks if s.value.shape == () and s.result.uses and _is_integral(s.value)
        ]
        skip = find_skip(op) if masks else None
        if skip is None:
            return
        taken = Assumed(op.body, {skip.predicate: skip.taken_when}, linear=carries_cotangents(op))
        found = []
        for stack in masks:
            yes, no = taken[stack.value], skip.skipped[stack.value]
            if (
                predicate_root(stack.value) is skip.predicate  # (2)
                and isinstance(yes, Splat)
                and isinstance(no, Splat)
            ):
                found.append((stack, (int(yes.value), int(no.value))))
        if found:
            yield PredicateStacks(
                op, "one predicate a step becomes one count of steps", skip, tuple(found)
            )

    def refuse(self, match: PredicateStacks) -> str | None:
        if match.skip.kind != "carried":  # (1)
            return "the predicate of the loop may become true again"
        if match.skip.scan.reverse:  # (1)
            return "the loop runs backwards"
        if match.skip.predicate.shape != ():  # (1)
            return "its predicate differs from row to row of a batch"
        return None

    def rewrite(self, match: PredicateStacks, rw: Rewriter) -> None:
        scan = match.skip.scan
        taken = count_taken(match.skip, rw)
        after = scan.next
        assert after is not None
        for stack, levels in match.stacks:
            mask = _mask(stack.value.dtype, levels)
            for user in stack.result.users:
                if isinstance(user, Scan):
                    for stream in [s for s in user.streams if s.operand is stack.result]:
                        _compare_rows(user, stream, taken, mask, rw)
            if stack.result.uses:
                numbers = rw.insert(lambda: lax.iota(np.int32, scan.length), before=after)
                whole = rw.typed(mask, stack.result.aval, numbers, taken, before=after)
                rw.replace(stack.result, whole)


def _mask(dtype: Any, levels: tuple[int, int]) -> Mask:
    """Rows below the count hold the first level, the others the second."""

    def mask(rows: jax.Array, count: jax.Array) -> jax.Array:
        below = lax.lt(rows, lax.broadcast(count, rows.shape))
        if levels == (1, 0):
            return lax.convert_element_type(below, dtype)
        yes, no = (lax.full(rows.shape, level, dtype) for level in levels)
        return lax.select(below, yes, no)

    return mask


def _is_integral(value: Value) -> bool:
    return dtypes.is_integral(value.dtype)


def _compare_rows(scan: Scan, stream: Stream, taken: Value, mask: Mask, rw: Rewriter) -> None:
    """In a scan that reads the mask row by row, compare the row number with the count instead."""
    n = scan.length
    numbers = rw.insert(lambda: lax.iota(np.int32, n), before=scan)
    row = Stream(numbers, rw.new_value(taken.aval, "row"))
    rw.set_scan(scan, streams=[*scan.streams, row])
    first = scan.body.first
    assert first is not None
    rw.replace(stream.param, rw.typed(mask, stream.param.aval, row.param, taken, before=first))
    rw.set_scan(scan, streams=[s for s in scan.streams if s.param is not stream.param])
