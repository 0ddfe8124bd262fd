"""Hoist what is loop-invariant out of a loop: residuals, carries, streams, computations.

Before::

    h, r = scan[8] carry(c=z) xs(x=xs) {
      s = sin w
      t = mul x s
      c1 = add c t
      yield carry(c1) ys(s)
    }
    g = scan[8, reverse] carry(c=ct) xs(s=r) {
      c1 = mul c s
      yield carry(c1)
    }

After::

    s = sin w
    h = scan[8] carry(c=z) xs(x=xs) {
      t = mul x s
      c1 = add c t
      yield carry(c1)
    }
    g = scan[8, reverse] carry(c=ct) {
      c1 = mul c s
      yield carry(c1)
    }

Sound when

1. a stack: its value is defined outside the loop, and it becomes one broadcast; or its value is
   unspecified, and so is the stack; or its value is the row of a stream that XLA does not divide
   over devices, and it becomes the stream's operand;
2. a stream: its operand repeats one row, and every step reads that row; or it is unspecified;
3. a carry: `next` is the carry itself or its initial value; then it has that value at every step
   and after the loop, even if no step is taken;
4. an op: all its operands are defined outside, it has no effects and is no collective, and the loop
   takes at least one step, so that nothing new is computed;
5. while it may be differentiated, an op makes no numbers of fewer digits: the cotangents of all
   steps would be added up in these (``w.astype(bfloat16) @ x``).

Ops stay in the step if XLA makes them where they are read, at no cost: ops that only move elements
of their operand (a broadcast, a slice, a transpose), unless a hoisted op or a residual needs them,
or the result is a small array of more than a few numbers; reshapes; arithmetic on row and column
numbers (a causal mask, an identity matrix) and its sums, which XLA folds; a little arithmetic on
what is repeated, or on narrower numbers (a mask as floats) that elementwise ops read; and the
transpose of a matrix that only products read. If an op that repeats numbers is hoisted for another
op, the ops that stay read a copy that the step makes.

Nothing leaves a branch, a `while` that may take no step, a `Remat` or a `Call`.

Cost: a residual of n rows becomes one value; an op runs once instead of n times. XLA hoists a
little arithmetic, too: alone it is no reason to touch a program. It makes a value that only moves
elements, or is made of numbers alone, or by a few ops of what is repeated or narrower, where it is
read; hoisted, it would take memory as long as the loop runs, and be read in each step, and each of
a few numbers is one more operand of every step.
Source: MLIR's scf loop-invariant code motion; https://github.com/jax-ml/jax/issues/8239 is what
happens to weights without it on jax 0.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.values.invariant_ops import invariant_ops, is_little
from jaxpr_opt.analysis.values.varying import why_varying
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.residuals.outer_values import Repetition, repeated
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Scan, Stack, Use, While
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import is_broadcast


@dataclass(frozen=True, slots=True, eq=False)
class Leaving(Match):
    """Ops of a scan's body that compute the same at every step, in order, and those of them that
    the step makes again for what stays.
    """

    op: Scan | While
    ops: tuple[Op, ...]
    again: tuple[Op, ...]


@dataclass(frozen=True, slots=True, eq=False)
class InvariantValues(Match):
    """Values of a loop that come from outside, each with what makes it before the loop."""

    op: Scan | While
    values: tuple[Repetition, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Varying(Match):
    """A residual computed within the loop: a stack that is read."""

    op: Scan
    stack: Stack


Found = Leaving | InvariantValues | Varying


@dataclass(frozen=True)
class HoistInvariantResiduals(Pass[Found]):
    """Keep once, outside of the loop, what would be stacked, streamed or carried unchanged."""

    name: ClassVar[str] = "hoist-invariant-residuals"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan, While)

    def find(self, op: Scan | While) -> Iterator[Found]:
        leaving, again = _leaving(op)
        if leaving:
            names = ", ".join(each.name for each in leaving if not is_broadcast(each))
            says = (
                f"{names or 'a broadcast'}: the same at every step, computed once before the loop"
            )
            yield Leaving(op, says, leaving, again, is_cleanup=_is_no_gain(leaving))
        values = tuple((old, make) for old, make in repeated(op) if old.uses)
        if values:
            names = ", ".join(old.label for old, _ in values)
            is_small = all(cost_model().is_no_line(old.nbytes) for old, _ in values)
            is_cleanup = isinstance(op, While) and is_small  # such as a bound: nobody stacks it
            says = f"{names}: the same at every step, kept once"
            yield InvariantValues(op, says, values, is_cleanup=is_cleanup)
        if isinstance(op, Scan):
            for stack in op.stacks:
                made = stack.value.op
                if made is not None and stack.result.uses and op.body.defines(stack.value):
                    says = f"{stack.value.label} is kept once instead of {op.length} times"
                    yield Varying(op, says, stack, at=made, is_refused=True)

    def refuse(self, match: Found) -> str | None:
        if isinstance(match, Varying):
            return why_varying(match.stack.value, match.op)
        return None

    def rewrite(self, match: Found, rw: Rewriter) -> None:
        match match:
            case Leaving():
                for op in match.ops:
                    rw.move(op, match.op)
                _make_again(match, rw)
            case InvariantValues():
                for old, make in match.values:
                    rw.replace(old, make(rw))


def _make_again(match: Leaving, rw: Rewriter) -> None:
    """Make in the step what an op that stays reads; a residual is kept before the loop."""
    body = match.op.body

    def stays(use: Use) -> bool:
        return use.op is not body.terminator and body.contains(use.op.region)

    if match.again and body.first is not None:
        for old, new in rw.clone(match.again, {}, before=body.first).items():
            rw.replace(old, new, where=stays)


def _leaving(loop: Scan | While) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Ops that may leave a loop, of which it is known that it takes steps (4)."""
    return invariant_ops(loop) if isinstance(loop, Scan) and loop.length > 0 else ((), ())


def _is_no_gain(leaving: Iterable[Op]) -> bool:
    """Whether only sums of cotangents could become fewer: XLA hoists basic arithmetic by itself."""
    made = [v for op in leaving for v in op.results]
    is_small = cost_model().is_quick(max(v.nbytes for v in made))
    is_free = is_small or not any(dtypes.is_inexact(v.dtype) for v in made)
    return is_free and all(map(is_little, leaving))
