"""Store the carry that one step leaves and the next begins with once, not twice.

Before::

    h, r, k = scan[8] carry(c=z) xs(x=xs) {
      t = tanh (add (dot_general w c) x)
      yield carry(t) ys(c, t)
    }
    g = scan[8, reverse] carry(d=ct) xs(a=r, b=k) { f a b d }

After::

    h, r = scan[8] carry(c=z) xs(x=xs) {
      t = tanh (add (dot_general w c) x)
      yield carry(t) ys(c)
    }
    g, _ = scan[8, reverse] carry(d=ct, b=h) xs(a=r) {
      ...
      yield carry(f a b d, a)
    }

The transpose of a recurrent network reads the state before a step, for the weights, and the state
after it, for the activation. Sound when

1. one stack is of a carry's parameter, the other of the same carry's next value;
2. the second stack is read only row by row, in loops of as many steps that run the other way: the
   row that such a loop reads of the first stack in a step is what it needs of the second one in the
   next step, and in its first step it needs the carry's result;
3. none of these loops skips steps, nor may one begin late, where data tell which steps count; and
   the carry has the type of the rows.

Cost: the reading loops carry one row more, and the stacking loop writes one row less. So it fires
only if that row is large, and a good part of what is streamed.
Source: the residuals of `lax.scan` are those of its body, each by itself; a step does not know that
another follows, https://github.com/jax-ml/jax/pull/4517.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.adjacent_step_stacks import is_good_part, readers_back, shifted
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Carry, Op, Scan, Stack, Stream, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class ShiftedStack(Match):
    """A stack of what a carry is after each step, and the one of what it is before."""

    op: Scan
    stack: Stack
    carry: Carry
    earlier: Stack


@dataclass(frozen=True)
class ShareShiftedStacks(Pass[ShiftedStack]):
    """Stacks of a carry before and after each step -> one of them."""

    name: ClassVar[str] = "share-shifted-stacks"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[ShiftedStack]:
        known = shifted(op)
        for stack in op.stacks if known else ():
            if stack.value in known and stack.result.uses:
                carry, earlier = known[stack.value]
                says = f"{stack.value.label} is {carry.param.label} of the next step, kept once"
                yield ShiftedStack(op, says, stack, carry, earlier, about=stack.result)

    def refuse(self, match: ShiftedStack) -> str | None:
        found = readers_back(match.op, match.stack.result)  # (2)
        if isinstance(found, str):  # (2, 3)
            return found
        if any(row.aval != match.carry.result.aval for _, row in found):  # (3)
            return "the carry is of another type than the rows"
        if not is_good_part(match.carry.param, (loop for loop, _ in found)):
            return "it is small, or a small part of what the loop streams"
        return None

    def rewrite(self, match: ShiftedStack, rw: Rewriter) -> None:
        scan, gone = match.op, match.stack.result
        found = readers_back(scan, gone)
        assert not isinstance(found, str)
        for reader, row in found:
            _carry(reader, row, match, rw)
        rw.set_scan(scan, stacks=[s for s in scan.stacks if s.result is not gone])


def _carry(reader: Scan, row: Value, match: ShiftedStack, rw: Rewriter) -> None:
    """Make a loop carry a row of the earlier stack to the step that needs it."""
    streams = [s for s in reader.streams if s.param is not row]
    earlier = next((s for s in streams if s.operand is match.earlier.result), None)
    if earlier is None:
        operand = match.earlier.result
        earlier = Stream(operand, rw.new_value(rw.row_aval(operand), operand.name))
        streams.append(earlier)
    param, last = rw.new_value(row.aval, row.name), rw.new_value(row.aval)
    carried = Carry(match.carry.result, param, earlier.param, last)
    rw.replace(row, param)
    rw.set_scan(reader, carries=[*reader.carries, carried], streams=streams)
