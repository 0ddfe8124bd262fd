"""Carry a buffer in the shape in which a step writes to it.

Before::

    c_n = scan[n] carry(c=c_0) xs(i, x) {
      r = reshape c
      d = dynamic_update_slice r x i
      yield carry(reshape d)
    }

After::

    r_0 = reshape c_0
    r_n = scan[n] carry(r=r_0) xs(i, x) {
      d = dynamic_update_slice r x i
      yield carry(d)
    }
    c_n = reshape r_n

Flat indices into a grid, a batch of one, an image whose columns are written as rows. What looks for
buffers (`stack-carried-updates`, `read-before-overwriting`) sees a step that replaces all of it.
Sound when

1. a step hands on what it has written, reshaped or transposed; and it writes to what it was given,
   reshaped or transposed the other way;
2. if it is transposed, nothing else reads what a step was given: what is only reshaped is moved
   nowhere.

Cost: nothing; a transposition before the loop and one after it, in place of two in each step.
Source: flat indices (https://github.com/jax-ml/jax/issues/15906 asks for a carry that stays in
place).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.carried.buffers import becomes
from jaxpr_opt.analysis.values.moves import is_taken_back, keeps_order
from jaxpr_opt.builders.same_op import on_others
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Carry, Op, Scan, Value, While, is_sized
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class MovedCarry(Match):
    """A carry that a step moves, writes to, and moves back."""

    loop: Scan | While
    carry: Carry
    away: Op
    back: Op


@dataclass(frozen=True)
class CarryAsWritten(Pass[MovedCarry]):
    """A carry that is reshaped, written to and reshaped back -> a carry of the other shape."""

    name: ClassVar[str] = "carry-as-written"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan, While)

    def find(self, op: Scan | While) -> Iterator[MovedCarry]:
        for carry in op.carries:
            back = carry.next.op
            if back is None or back.region is not op.body or len(back.operands) != 1:
                continue
            for away in carry.param.users:
                is_here = away.region is op.body and is_taken_back(away, back)
                if is_here and is_taken_back(back, away) and _is_written(away, back):  # (1)
                    how = "reshaped" if keeps_order(back) else "transposed"
                    says = f"{carry.param.label} is carried as it is written, {how}"
                    yield MovedCarry(op, says, op, carry, away, back, about=carry.param)
                    break

    def refuse(self, match: MovedCarry) -> str | None:
        carry, away, back = match.carry, match.away, match.back
        if any(map(is_sharded, (carry.init, carry.param, away.result))):
            return "its rows may be on several devices"
        if not all(is_sized(v.shape) for v in (carry.param, away.result)):
            return "its shape is not known"
        others = [u for u in carry.param.users if not is_taken_back(u, back)]
        if others and not keeps_order(away):  # (2)
            return f"{others[0].name} reads it as it was"
        if isinstance(match.loop, While) and _asked(match.loop, carry).uses:
            return "the predicate reads it as it was"
        return None

    def rewrite(self, match: MovedCarry, rw: Rewriter) -> None:
        loop, old, away, back = match.loop, match.carry, match.away, match.back
        begun = on_others(away, [old.init], rw, before=loop)
        written = back.operands[0]
        param, result = (rw.new_value(written.aval, v.name) for v in (old.param, old.result))
        for each in [u for u in old.param.users if is_taken_back(u, back)]:
            rw.replace(each.result, param)
            rw.erase(each)
        assert loop.body.first is not None and loop.next is not None
        if old.param.uses:
            rw.replace(old.param, on_others(back, [param], rw, before=loop.body.first))
        rw.replace(old.result, on_others(back, [result], rw, before=loop.next))
        new = Carry(begun, param, written, result)
        carries = [new if c.param is old.param else c for c in loop.carries]
        if isinstance(loop, Scan):
            rw.set_scan(loop, carries=carries)
        else:
            at = next(i for i, c in enumerate(carries) if c is new)
            asked = {at: rw.new_value(written.aval, old.param.name)}
            rw.set_while(loop, carries, range(len(carries)), asked)


def _is_written(away: Op, back: Op) -> bool:
    """Whether what is moved back was written to what had been moved."""
    return becomes(away.result, back.operands[0]) and away.result is not back.operands[0]


def _asked(loop: While, carry: Carry) -> Value:
    """The same carry, in the predicate."""
    at = next(i for i, c in enumerate(loop.carries) if c.param is carry.param)
    return loop.predicate.params[at]
