"""Write after a branch what a branch wrote.

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

An array that goes through a ``cond`` is not seen to be written by windows only, and its cotangent
is copied at every branch.  Sound when

1. a branch yields a write of one window into an array from outside of the cond, which nothing else
   in the branch reads, and all others yield that array as it is;
2. the place is known to be in range (`jaxpr_opt.analysis.access`), and computed by what may run
   whether or not the branch is taken.

Cost: the window is read once more, and less than half of the array.  In a scan only, where the
array may then become a stack; XLA writes in place through a branch, too.
Source: https://github.com/jax-ml/jax/issues/15906; the gradient of 2000 such steps took 15 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxpr_opt.analysis.access import Access, access
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.ir import Cond, Constant, Op, Outcome, Scan, Value, backward_slice
from jaxpr_opt.engine.pipeline import Match, Pass
from jaxpr_opt.engine.rewriter import Rewriter
from jaxpr_opt.engine.traits import is_arithmetic


@dataclass(frozen=True, slots=True, eq=False)
class WrittenInBranch(Match):
    """A result of a cond that branch `index` writes into."""

    outcome: Outcome
    index: int
    write: Access


@dataclass(frozen=True)
class WriteAfterBranches(Pass):
    """A cond between an array and the array with a window written yields the window instead."""

    name: ClassVar[str] = "write-after-branches"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Cond,)

    def find(self, op: Op) -> Iterator[WrittenInBranch]:
        assert isinstance(op, Cond)
        if not isinstance(op.parent, Scan):
            return
        for outcome in op.outcomes:
            others = set(outcome.values)
            for index, value in enumerate(outcome.values):
                write = access(value.op) if value.op is not None else None
                if write is None or write.kind != "write" or not outcome.result.uses:
                    continue
                if others == {value, write.array}:  # (1)
                    says = f"what branch {index} writes is written after the cond"
                    yield WrittenInBranch(op, says, outcome, index, write)

    def refuse(self, match: WrittenInBranch) -> str | None:
        cond, write = match.op, match.write
        assert isinstance(cond, Cond)
        branch = cond.branches[match.index]
        if write.op.region is not branch:
            return "it is written outside of the cond"  # (1)
        if [use.op for use in write.op.result.uses] != [branch.terminator]:
            return f"what {write.op.name} makes is read in the branch, too"  # (1)
        if not write.is_located:
            return "the place written is not known to be in range"  # (2)
        if not all(is_arithmetic(op) for op in _places(write, cond)):
            return "the place written is computed by more than arithmetic"  # (2)
        if cost_model().is_most(write.nbytes, write.array.nbytes):
            return "the window is most of the array"
        return None

    def rewrite(self, match: WrittenInBranch, rw: Rewriter) -> None:
        cond, write = match.op, match.write
        assert isinstance(cond, Cond) and cond.next is not None
        moved = rw.clone(_places(write, cond), {}, cond)
        places = [moved.get(v, v) for v in write.indices]
        value = write.value
        old = rw.typed(write.read, value.aval, write.array, *places, before=cond)
        values = [value if i == match.index else old for i in range(len(cond.branches))]
        window = Outcome(rw.new_value(value.aval), tuple(values))
        new = _written(write, window.result, places, cond.next, rw)
        rw.replace(match.outcome.result, new)
        rw.set_cond(
            cond, [window if o.result is match.outcome.result else o for o in cond.outcomes]
        )
        rw.erase(write.op)


def _places(write: Access, cond: Cond) -> list[Op]:
    """The ops of the branch that compute where the window is."""
    outside = lambda v: isinstance(v, Constant) or not _inside(v, cond)  # noqa: E731
    return backward_slice(write.indices, outside)


def _inside(value: Value, cond: Cond) -> bool:
    return any(branch.defines(value) for branch in cond.branches)


def _written(write: Access, value: Value, places: list[Value], before: Op, rw: Rewriter) -> Value:
    primitive, params = write.op.primitive, write.op.params
    assert primitive is not None

    def fun(array: Any, value: Any, *places: Any) -> Any:
        if write.op.name == "dynamic_update_slice":
            return primitive.bind(array, value, *places, **params)
        return primitive.bind(array, *places, value, **params)

    return rw.typed(fun, write.op.result.aval, write.array, value, *places, before=before)
