"""Add a one-hot array, times a number, as a window: not all of its zeros.

Before::

    q_n = scan[n] carry(q=q_0) xs(i=is, r=rs) {
      e = convert_element_type (eq iota i)   # jax.nn.one_hot(i, m)
      d = mul r e
      p = add q d
      yield carry(p)
    }

After::

    q_n = scan[n] carry(q=q_0) xs(i=is, r=rs) {
      z = broadcast_in_dim 0.0
      s = scatter-add z i 1.0
      d = mul r s
      p = add q d
      yield carry(p)
    }

The table of a learner, ``q + rate * error * one_hot(s)[:, None] * one_hot(a)``; counts of pairs; a
confusion matrix. What is zero but for a window is then added in place (`update-rows`,
`accumulate-sparse-cotangents`, XLA itself). Sound, up to rounding, when

1. the term is zero but for one place along some axes, one for all or one for each row of a batch,
   where it is a product (`jaxpr_opt.analysis.masks.picked_places`);
2. factors by which the zeros are multiplied, too, are the same along these axes: they multiply the
   zeros of the new array;
3. nothing differentiates the result any more: a cotangent that is not finite, times zero, is NaN.

Cost: the window instead of the array. Only where the array is updated in place: a loop carries it,
and nothing reads it afterwards, nor the term.
Source: tabular reinforcement learning; bigram counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.carried.buffers import is_updated_in
from jaxpr_opt.analysis.carried.overwritten import is_read_late
from jaxpr_opt.analysis.masks.picked_arrays import Picked
from jaxpr_opt.analysis.masks.picked_places import picked
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.values.ranges import is_ranged
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.masks.picked_sums import read
from jaxpr_opt.builders.masks.picked_windows import InZeros
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Phase, Value, is_sized
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class OneHotTerm(Match):
    """The sum of an array and one that is zero but for one place a row."""

    array: Value
    term: Value
    picked: Picked

    window: int
    """The bytes of all windows."""


@dataclass(frozen=True)
class AddOneHotRows(Pass[OneHotTerm]):
    """An array plus a one-hot array -> plus a window in zeros."""

    name: ClassVar[str] = "add-one-hot-rows"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "differentiated"
    unspecified: ClassVar[bool] = True  # (3)
    primitives: ClassVar[frozenset[str]] = frozenset({"add", "add_any", "sub"})
    needs: ClassVar[frozenset[str]] = frozenset({"eq", "ne"})

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[OneHotTerm]:
        loop = loop_of(op)
        pairs = [op.operands] if op.name == "sub" else [op.operands, op.operands[::-1]]
        for array, term in pairs:
            if loop is None or array.aval != op.result.aval or not is_updated_in(array, loop):
                continue
            found = picked(term) if term.shape == array.shape else None
            if found is not None and found.elsewhere == 0 and is_sized(term.shape):  # (1)
                kept = [n for d, n in enumerate(term.shape) if d not in found.axes]
                window, all_ = dtypes.nbytes(kept, term.dtype), bytes_text(array.nbytes)
                says = f"{bytes_text(window)} are added to {array.label}, not {all_}"
                yield OneHotTerm(op, says, array, term, found, window, about=op.result)

    def refuse(self, match: OneHotTerm) -> str | None:
        found, term, array = match.picked, match.term, match.array
        if not is_ranged(term.dtype) or found.inner:  # (1)
            return "it is not a product at one place"
        if any(f.leaks and found.axes & {*f.source.axes} for f in found.factors):
            return "zeros are multiplied by numbers that are not all the same"  # (2)
        if any(map(is_sharded, (array, term))):
            return "its rows may be on several devices"
        if is_read_late(array, match.op) or len(term.uses) > 1:
            return f"{array.label} or the term is read afterwards, so XLA would copy it"
        if not cost_model().is_sparse(match.window, array.nbytes):
            return f"the rows together are as large as {array.label}"
        return None

    def rewrite(self, match: OneHotTerm, rw: Rewriter) -> None:
        term, sources = match.term, [read(source, rw) for source in match.picked.sources]
        made = InZeros(match.picked, term.shape, term.dtype)
        rw.replace(term, rw.typed(made, term.aval, *sources, before=match.op))
