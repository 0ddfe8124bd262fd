"""Write a window into the whole array instead of into one of two disjoint parts that are then
added.

Before::

    a = select_n p c 0
    b = select_n p 0 c
    w = write b i u
    s = add_any a w

After::

    a = select_n p c 0
    r = read a i
    v = add_any r u
    s = write c i v

The transpose of a select splits a cotangent into two parts, each zero where the other is not. The
transpose of the selected code writes into one, or adds to it; the sum of the parts touches three
whole arrays in every step of a loop. Sound when

1. both are parts of one array by one predicate: x + 0 is x, up to the sign of zero;
2. each write is of one window, or one in each row of a batch, so that no element is written twice
   (`jaxpr_opt.analysis.windows.access`); reads mirror writes, so that windows out of range are
   clamped alike, and dropped ones have no effect;
3. additions come first: an addition to a window that was written or added to before would change
   the order of the sum;
4. no op reads more of the parts than windows, which are then selected by themselves
   (`narrow-reads`), and no other op reads the intermediate arrays.

Cost: one read of a window for each write, and no longer the array: less, unless the windows are
most of it.
Source: https://github.com/jax-ml/jax/issues/8192, under `jax.grad`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax

from jaxpr_opt.analysis.values.constants import is_weak, strong, uniform
from jaxpr_opt.analysis.windows.access import Access, access, reads_window
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS


@dataclass(frozen=True, slots=True, eq=False)
class SumOfParts(Match):
    """One part of `whole`, plus what `writes` make of the `other`, first to last."""

    part: Value
    other: Value
    whole: Value
    writes: tuple[Access, ...]


@dataclass(frozen=True)
class JoinSelectedParts(Pass):
    """The sum of the two parts of an array, of which one was written to, is written to."""

    name: ClassVar[str] = "join-selected-parts"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = SUMS
    needs: ClassVar[frozenset[str]] = frozenset({"select_n"})

    def find(self, op: Op) -> Iterator[SumOfParts]:
        for part, last in (op.operands, op.operands[::-1]):
            known = _part(part)
            if known is None:
                continue
            which, case, whole = known
            other, writes = _written(last, op)
            if _part(other) == (which, 1 - case, whole):  # (1)
                says = f"two disjoint parts of {whole.label} are written in place, not added"
                yield SumOfParts(op, says, part, other, whole, writes, about=op.result)
                return

    def refuse(self, match: SumOfParts) -> str | None:
        path = {match.op, *(write.op for write in match.writes)}
        for value in (match.part, match.other):
            whole = (u for u in value.users if u not in path and not reads_window(u, value))
            user = next(whole, None)
            if user is not None:
                return f"{user.name} reads a whole part"  # (4)
        if any(write.kind == "add" for write in match.writes[1:]):
            return "a written window is added to, and the order of the sum would change"  # (3)
        for write in match.writes:
            if not path.issuperset(write.op.result.users):
                return f"what {write.op.name} makes is read elsewhere, too"  # (4)
        if cost_model().is_most(sum(write.nbytes for write in match.writes), match.whole.nbytes):
            return "the windows are most of the array"
        return None

    def rewrite(self, match: SumOfParts, rw: Rewriter) -> None:
        op, version = match.op, match.whole
        for write in match.writes:
            version = _again(write, version, match, rw)
        if is_weak(version) != is_weak(op.result):
            version = rw.typed(strong, op.result.aval, version, before=op)
        rw.replace(op.result, version)
        for each in (op, *(write.op for write in reversed(match.writes))):
            rw.erase(each)


def _part(value: Value) -> tuple[Value, int, Value] | None:  # (1)
    """The predicate by which a value is some array or zero, which case is the array, and that."""
    op = value.op
    if op is None or op.name != "select_n" or len(op.operands) != 3:
        return None
    which, *cases = op.operands
    case = next((at for at in (0, 1) if uniform(cases[1 - at]) == 0), None)
    return (which, case, cases[case]) if case is not None else None


def _written(value: Value, anchor: Op) -> tuple[Value, tuple[Access, ...]]:
    """What an array was before windows of it were written, and the writes, first to last."""
    writes: tuple[Access, ...] = ()
    while (op := value.op) is not None and len(writes) < limits.WRITES_IN_A_ROW:
        write = access(op) if op.region is anchor.region else None
        if write is None or write.kind == "read":  # (2)
            break
        writes, value = (write, *writes), write.array
    return value, writes


def _again(write: Access, version: Value, match: SumOfParts, rw: Rewriter) -> Value:
    """The write into a version of the whole, of the sum of both parts."""
    plus = match.op
    assert plus.primitive is not None
    add = partial(plus.primitive.bind, **plus.params)

    def fun(version: jax.Array, part: jax.Array, value: jax.Array, *at: jax.Array) -> jax.Array:
        if write.kind == "write":
            value = add(write.read(part, *at), value)
        return write.again(version, value, *at)

    operands = (version, match.part, write.value, *write.indices)
    return rw.typed(fun, write.op.result.aval, *operands, before=plus)
