"""Move the write of a window from a branch to after the cond.

Before::

    b1 = cond p {
      u = f x
      w = dynamic_update_slice b u i
      yield w
    } else {
      yield b
    }

After::

    r = dynamic_slice b i
    v = cond p {
      u = f x
      yield u
    } else {
      yield r
    }
    b1 = dynamic_update_slice b v i

Other passes do not see that an array which goes through a ``cond`` is only written by windows, and
its cotangent is copied at every branch. Sound when

1. a branch yields a write of one window into an array from outside the cond, and nothing else in
   the branch reads the result; the others (at least one) yield that array unchanged, or such a
   write, of a window of the same size by the same op; zeros are one array;
2. a branch that does not write returns the old window, clamped or dropped alike where that is out
   of range; so the index is computed by ops that may be speculated, and where the write promises to
   be in range, that is proved (`jaxpr_opt.analysis.windows.access`).

If several branches write, each returns its index, as the experts of a mixture do that are rows of
one array.

Cost: one more read of the window, which is less than half of the array. In a scan only, maybe in a
branch of its step, where the array may then become a stack; XLA writes in place through a branch,
too. If the array cannot become one, because the index is unknown or differs, the loop must store it
in each step, which `undo-carried-writes` avoids; or a branch must also read it, which makes XLA
copy it: the transpose of a snapshot reads its cotangent and clears it. Zeros with a window in them,
as the transpose of a read makes them, are not made in a branch.
Source: https://github.com/jax-ml/jax/issues/15906; the gradient of 2000 such steps took 15 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.residuals.versions import is_stacked
from jaxpr_opt.analysis.values.constants import identity, uniform
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.bridge.parameters import mode_of
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Cond, Constant, Op, Outcome, Scan, Value, backward_slice
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import is_arithmetic


@dataclass(frozen=True, slots=True, eq=False)
class WrittenInBranch(Match):
    """A result of a cond that branches write into: the write of each, None if it does not."""

    outcome: Outcome
    writes: tuple[Access | None, ...]

    @property
    def made(self) -> list[Access]:
        return [write for write in self.writes if write is not None]


@dataclass(frozen=True)
class WriteAfterBranches(Pass):
    """A cond between an array and the array with a window written yields the window instead."""

    name: ClassVar[str] = "write-after-branches"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Cond,)

    def find(self, op: Op) -> Iterator[WrittenInBranch]:
        assert isinstance(op, Cond)
        if not isinstance(loop_of(op), Scan):
            return
        for outcome in op.outcomes:
            writes = tuple(map(_write, outcome.values))
            pairs = zip(outcome.values, writes, strict=True)
            arrays = [value if write is None else write.array for value, write in pairs]
            is_one = _are_one(arrays) or _are_zeros(arrays)  # (1)
            if outcome.result.uses and any(writes) and is_one:
                numbers = [str(i) for i, write in enumerate(writes) if write is not None]
                branches = "branch" if len(numbers) == 1 else "each of branches"
                says = f"what {branches} {', '.join(numbers)} writes is written after the cond"
                yield WrittenInBranch(op, says, outcome, writes)

    def refuse(self, match: WrittenInBranch) -> str | None:
        cond, (first, *others) = match.op, match.made
        assert isinstance(cond, Cond)
        for branch, write in zip(cond.branches, match.writes, strict=True):
            if write is None:
                continue
            if write.op.region is not branch:
                return "the write is outside of the cond"  # (1)
            if [use.op for use in write.op.result.uses] != [branch.terminator]:
                return f"what {write.op.name} makes is read in the branch, too"  # (1)
        if not all(_is_alike(first, other) for other in others):
            return "branches write windows of different sizes, or by different ops"  # (1)
        if None in match.writes and not (first.is_located or _is_checked(first)):
            return "the index of the write may be out of range"  # (2)
        if None in match.writes and not all(map(is_arithmetic, _places(first, cond))):
            return "the index of the write is computed by more than arithmetic"  # (2)
        if cost_model().is_most(first.nbytes, first.array.nbytes):
            return "the window is most of the array"
        if _are_zeros([first.array]) or (first.is_located and not others):
            return None
        if _is_copied(first, cond) or any(map(is_stacked, (first.array, match.outcome.result))):
            return None
        return "XLA already writes it in place, in steps that take the branch only"

    def rewrite(self, match: WrittenInBranch, rw: Rewriter) -> None:
        cond, first, result = match.op, match.made[0], match.outcome.result
        assert isinstance(cond, Cond) and cond.next is not None
        array = first.array
        if _are_zeros([array]):
            array = rw.insert(partial(jnp.zeros, array.shape, array.dtype), before=cond)
        values = {i: write.value for i, write in enumerate(match.writes) if write is not None}
        places = {i: write.indices for i, write in enumerate(match.writes) if write is not None}
        if None in match.writes:
            moved = rw.clone(_places(first, cond), {}, cond)
            there = tuple(moved.get(v, v) for v in first.indices)
            old = rw.typed(first.read, first.value.aval, array, *there, before=cond)
            places = places if len(places) > 1 else {}
        else:
            there, old = first.indices, first.value
        branches = range(len(cond.branches))
        each = [places.get(i, there) for i in branches]
        cases = tuple(values.get(i, old) for i in branches)
        window = Outcome(rw.new_value(first.value.aval), cases)
        chosen = [_chosen(numbers, rw) for numbers in zip(*each, strict=True)]
        new = [o for o in chosen if isinstance(o, Outcome)]
        at = [o.result if isinstance(o, Outcome) else o for o in chosen]
        aval, operands = first.op.result.aval, (array, window.result, *at)
        rw.replace(result, rw.typed(first.again, aval, *operands, before=cond.next))
        kept = [window if o.result is result else o for o in cond.outcomes]
        rw.set_cond(cond, [*kept, *new])
        for write in match.made:
            rw.erase(write.op)


def _are_one(arrays: list[Value]) -> bool:
    return len(set(arrays)) == 1


def _are_zeros(arrays: list[Value]) -> bool:
    return all(uniform(array) == 0 for array in arrays)


def _write(value: Value) -> Access | None:
    """The write of a window that makes a value."""
    found = access(value.op) if value.op is not None else None
    return found if found is not None and found.kind == "write" else None


def _is_copied(write: Access, cond: Cond) -> bool:
    """Whether a branch reads of the array as well, so that XLA copies it."""
    inside = [
        use for use in write.array.uses if any(b.contains(use.op.region) for b in cond.branches)
    ]
    return any((found := access(use.op)) is not None and found.kind == "read" for use in inside)


def _is_checked(write: Access) -> bool:
    """Whether a write out of range is clamped or dropped."""
    return bool(mode_of(write.op) != lax.GatherScatterMode.PROMISE_IN_BOUNDS)


def _is_alike(one: Access, other: Access) -> bool:
    """Whether two writes differ in what they write, and where, only."""
    same = one.op.name == other.op.name and one.op.params == other.op.params
    return same and one.value.aval == other.value.aval


def _chosen(values: tuple[Value, ...], rw: Rewriter) -> Outcome | Value:
    """What each branch has of a number; the number, if that is the same."""
    if len({identity(value) for value in values}) == 1:
        return values[0]
    return Outcome(rw.new_value(values[0].aval), values)


def _places(write: Access, cond: Cond) -> list[Op]:
    """The ops of the branch that compute where the window is."""
    outside = lambda v: isinstance(v, Constant) or not cond.defines(v)  # noqa: E731
    return backward_slice(write.indices, outside)
