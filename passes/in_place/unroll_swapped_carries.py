"""Take several steps at once where carries change places, so that XLA need not copy them.

Before::

    a_n, b_n = scan[2 * n] carry(a=a_0, b=b_0) xs(x) {
      c = dynamic_update_slice b x 0
      yield carry(c, a)
    }

After::

    _, a_n, b_n = scan[n] carry(i=0, a=a_0, b=b_0) {
      c = dynamic_update_slice b x[i] 0
      d = dynamic_update_slice a x[i + 1] 0
      yield carry(i + 2, d, c)
    }

XLA keeps each carry of a loop in a buffer of its own. A step that hands one on as another, as
leapfrog schemes and pairs of buffers do, copies it. After as many steps as there are places, each
is back in its own. The steps are the same, in the same order, with their effects; those that are
left follow the loop. Rows of streams are read, and rows of stacks written, where they are. Fires
where

1. a carry becomes one other carry, by writes in place or as it is: one that also stays, or becomes
   two, is copied in any case;
2. the steps are many, and those at once few, with few ops: each op is compiled as often;
3. a step makes much less, beside what it writes in place, than is copied: XLA fuses steps that are
   taken at once, and computes again what the next step reads (a stencil then takes up to 3.8 times
   as long); or the user asks for as many steps at once (`unroll`);
4. copies take longer than a step does anyway;
5. nothing differentiates the loop any more (the final phase): the transpose of a row that is read
   is an array of zeros with a row in it.

Cost: the step is compiled once for each place. Two buffers of 640 kB of which a step reads and
writes rows: forward 0.02 to 0.03 of the time and 0.5 to 0.67 of the memory of plain JAX, gradients
0.01 to 0.08 (both versions, CPU).
Source: `jax.lax.scan(..., unroll=2)`, as users write it to swap buffers; modulo variable expansion
(Lam, 1988).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.in_place.swapped import Swapped, swapped_carries
from jaxpr_opt.bridge.parameters import unroll_of
from jaxpr_opt.builders.in_place.steps_at_once import take_at_once
from jaxpr_opt.cost.fusion import is_fused
from jaxpr_opt.cost.limits import OPS_AT_ONCE, STEPS_AT_ONCE, STEPS_DIVIDED
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Phase, Scan, is_sized
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Unrolled(Match):
    """A loop whose carries change places."""

    op: Scan
    swapped: Swapped
    count: int
    """How many steps are taken at once."""
    is_asked: bool
    """Whether the user asks for as many."""


@dataclass(frozen=True)
class UnrollSwappedCarries(Pass[Unrolled]):
    """Carries that change places -> several steps at once, after which they are back."""

    name: ClassVar[str] = "unroll-swapped-carries"
    phase: ClassVar[Phase] = "final"  # (5)
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[Unrolled]:
        sized = all(is_sized(v.shape) for v in (*op.operands, *op.results))
        swapped = swapped_carries(op) if sized and is_sized((op.length,)) else None
        if swapped is None or cost_model().is_hidden(swapped.nbytes):  # (4)
            return
        asked = unroll_of(op)
        count = swapped.period * max(asked // swapped.period, 1)
        if asked is not True and 0 < asked < op.length:
            name = swapped.carries[0].param.label
            says = f"{count} steps are taken at once: {name} is back in its place, and not copied"
            yield Unrolled(op, says, swapped, count, asked >= count, about=swapped.carries[0].param)

    def refuse(self, match: Unrolled) -> str | None:
        scan, count = match.op, match.count
        if match.is_asked:
            return None
        if count > STEPS_AT_ONCE or scan.length < STEPS_DIVIDED:
            return f"{scan.length} steps are few, or {count} at once many"  # (2)
        if count * sum(not op.is_terminator for op in scan.walk()) > OPS_AT_ONCE:
            return "a step has many ops, and each would be compiled several times"  # (2)
        if not cost_model().is_longer(_made(scan), match.swapped.nbytes):
            return "a step makes arrays that XLA may compute once more in the next one"  # (3)
        return None

    def rewrite(self, match: Unrolled, rw: Rewriter) -> None:
        take_at_once(match.op, match.count, rw)


def _made(scan: Scan) -> int:
    """The bytes that a step makes in ops that XLA fuses with their readers."""
    fused = filter(is_fused, scan.body.walk())
    return sum(value.nbytes for op in fused for value in op.results)
