"""Read a residual directly, where a branch returns it only because the other branch must return
something.

Before::

    h, r = scan[8] carry(c=z) xs(p=ps) {
      d, q = cond p {
        m = dot_general c w
        yield m, w
      } else {
        u = undefined
        yield c, u
      }
      yield carry(d) ys(q)
    }

After::

    h, r = scan[8] carry(c=z) xs(p=ps) {
      d = cond p {
        m = dot_general c w
        yield m
      } else {
        yield c
      }
      yield carry(d) ys(w)
    }

The untaken branch yields a dummy, JAX's `empty`, for residuals of the taken one. Sound when

1. the result is unspecified in every branch but those that agree on one value; then it may be that
   value in all branches. If it is unspecified in all, it is unspecified. A select with an
   unspecified case is treated alike;
2. the value is defined outside the cond, or cheap ops that may be speculated make it from such
   values (they are repeated before the cond, and none of them jumps where XLA may round what it
   reads otherwise there, `jaxpr_opt.analysis.values.rounding`); or
3. the result is read inside a branch of a cond on the same predicate, of as many branches. There
   it is what its own cond yields in that branch, defined outside or moved from there.

Cost: the value must be the same at every step of the loop around the cond, so that it is never
stacked. A value that changes stays unspecified in steps that do not need it, because such a step
writes nothing. Exceptions are a row of an array that the loop streams, which is there; an index of
a few bytes, as passes need it to see where an array is read and written; and a version of a buffer
that a loop stores for its gradient: the loop back gets it by undoing writes
(`undo-carried-writes`). Outside of loops what a branch made stays (3): it is kept once, and under
`vmap`, which computes all branches, those that read one result compute the same, once (a `switch`
over weights, gradients of a batch: else up to 1.8 times as long, in 4.8 times the memory). So does
an array that a branch updates, if anything else reads it: XLA would copy two versions of it.
Source: https://github.com/jax-ml/jax/issues/8239.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.alike_branches import moved_before, reads_in_branches
from jaxpr_opt.analysis.residuals.versions import is_undone
from jaxpr_opt.analysis.values.constants import identity, is_undefined
from jaxpr_opt.analysis.values.repeatable import changing_source, not_repeatable
from jaxpr_opt.analysis.values.varying import loop_around, steps_of
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.devices import is_divided
from jaxpr_opt.ir.graph import UNDEFINED, Cond, Op, Scan, Use, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Dummy(Match):
    """A result that may as well be `value`; None: any value."""

    result: Value
    value: Value | None


@dataclass(frozen=True, slots=True, eq=False)
class ReadInBranch(Match):
    """Reads of a result inside the branch that made it."""

    reads: tuple[tuple[Use, Value, Op], ...]
    """Each with the value that it may read instead, and the op before which that must be made."""


@dataclass(frozen=True)
class DropDummyResiduals(Pass[Dummy | ReadInBranch]):
    """Replace a branch result that is real in one branch only by the real value."""

    name: ClassVar[str] = "drop-dummy-residuals"

    primitives: ClassVar[frozenset[str]] = frozenset({"cond", "select_n"})
    needs: ClassVar[frozenset[str]] = frozenset({"cond", "empty2", UNDEFINED})

    def find(self, op: Op) -> Iterator[Dummy | ReadInBranch]:
        if isinstance(op, Cond):
            for outcome in op.outcomes:
                if outcome.result.uses:
                    yield from _dummy(op, outcome.result, outcome.values)
            if reads := tuple(reads_in_branches(op)):
                says = f"{len(reads)} reads are in the branch that made the value"
                yield ReadInBranch(op, says, reads)
        elif any(map(is_undefined, op.operands[1:])) and op.result.uses:
            yield from _dummy(op, op.result, op.operands[1:])

    def refuse(self, match: Dummy | ReadInBranch) -> str | None:
        if isinstance(match, ReadInBranch):
            label, is_alone = match.reads[0][1].label, loop_around(match.op) is None
            return f"outside of loops {label} is kept once" if is_alone else None
        if match.value is None:
            return None
        name, costly = match.value.label, not_repeatable(match.value, match.op)
        if costly is not None:  # (2)
            return f"{name} needs {costly.name}, which costs more to compute again than to keep"
        changing = changing_source(match.value, match.op)
        prices = cost_model()
        is_index = dtypes.is_integer(match.value.dtype) and prices.is_no_line(match.value.nbytes)
        is_there = is_index or _is_row(match.value) or is_undone(match.value, match.result)
        if changing is not None and not is_there:
            return f"{name} changes from step to step with {changing.label}"
        made = _made_inside(match.value, match.op)
        steps = steps_of(loop_around(match.op)) if changing is None else 1
        if prices.repeated(made) > steps * prices.stored_far(match.value.nbytes):
            most = max(made, key=lambda op: prices.repeated([op]))
            return f"{name} needs {most.name}, which costs more to compute again than to keep"
        return None

    def rewrite(self, match: Dummy | ReadInBranch, rw: Rewriter) -> None:
        match match:
            case Dummy(result=result, value=None):
                rw.replace(result, rw.undefined(result.aval, before=match.op))
            case Dummy(result=result, value=Value() as value):
                copies = rw.clone(_made_inside(value, match.op), {}, match.op)
                rw.replace(result, copies.get(value, value))
            case ReadInBranch(op=Cond() as cond):
                for use, value, before in match.reads:
                    moved = moved_before(value, cond)
                    assert moved is not None
                    copies = rw.clone(moved, {}, before)
                    rw.set_operand(use.op, use.position, copies.get(value, value))


def _dummy(op: Op, result: Value, cases: tuple[Value, ...]) -> Iterator[Dummy]:
    """The match for a result that is real in some cases only, and the same there (1)."""
    real = {identity(v): v for v in cases if not is_undefined(v)}
    if len(real) > 1:  # (1)
        return
    if not real:
        yield Dummy(op, f"{result.label} is a dummy in every branch", result, None)
    for value in real.values():
        if value.aval == result.aval:  # (1)
            says = f"{value.label} is read directly, not through the branch"
            yield Dummy(op, says, result, value)


def _is_row(value: Value) -> bool:
    """Whether a loop streams a value, so that its rows need not be stacked."""
    loop = value.region.owner if value.region is not None else None
    return isinstance(loop, Scan) and loop.stream_of(value) is not None and not is_divided(loop)


def _made_inside(value: Value, op: Op) -> list[Op]:
    """The ops inside `op` that make a value."""
    return backward_slice([value], lambda v: not any(r.defines(v) for r in op.regions))
