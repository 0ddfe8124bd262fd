"""Read, or add, rows at the places where a one-hot array is one, not all that it is multiplied by.

Before::

    e = eq iota i
    x = convert_element_type e            # x = jax.nn.one_hot(i, n)
    p = dot_general x w                   # x @ w
    s = dot_general[contract=0x0] x y     # x.T @ y

After::

    r = gather[fill=0] w i
    p = select_n (others w r) r nan       # where another row of w is not finite
    z = broadcast_in_dim 0.0
    s = scatter-add z i y                 # likewise

An embedding as a product, the weights of an expert, counts, means of clusters, pooling by a mask
``segments[:, None] == jnp.arange(n)``; the tokens of experts, which ``tec,td->ecd`` dispatches; the
trace of a product, ``jnp.diag(v) @ x``. The product goes through all places for each row. Sound, up
to rounding, when

1. what is summed up, reduced or multiplied is zero (or the neutral element) but for one place along
   some axes: where `eq` compares the places with a number, times factors; or it is a sum of such
   arrays, several places a row; a place out of range is read as zero, and dropped where it is
   written;
2. the neutral element is that of the reduction;
3. numbers are real, so that zero times a number is zero, up to its sign, or NaN if that is not
   finite: where such a number is elsewhere, the result is NaN. It was not multiplied where a select
   chose it, and zeros that a transposed select makes of a cotangent are symbolic. An infinite
   number at a place that comes several times in a row is multiplied each time, and then added up;
4. nothing differentiates the result any more: zero times a cotangent that is not finite is NaN, and
   JAX's transpose of a read is a row;
5. counts of numbers that are not finite fit into 32 bits.

Cost: the rows, and a look at all of the factors, before the loops in which they stay the same. It
fires where that is less than what is multiplied or reduced takes: not in a loop that trains a table
row by row.
Source: recurrent networks over characters, https://gist.github.com/karpathy/d4dee566867f8291f086;
experts with a capacity (Lepikhin et al., arXiv:2006.16668).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

import numpy as np

from jaxpr_opt.analysis.masks.one_hot import REDUCTIONS
from jaxpr_opt.analysis.masks.picked_sums import (
    PickedSum,
    is_read_at_places,
    loops_of_the_same,
    pays,
    picked_sum,
)
from jaxpr_opt.analysis.values.ranges import is_ranged
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.builders.masks.picked_sums import OrNan, SumOfPlaces, read
from jaxpr_opt.cost import limits
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_divided, is_sharded
from jaxpr_opt.ir.graph import Op, Phase
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class PickedPlaces(Match):
    """A product or a reduction of what is zero but for one place a row."""

    sum: PickedSum


@dataclass(frozen=True)
class ReadOneHotRows(Pass[PickedPlaces]):
    """A sum over the places of a one-hot array -> reads and additions of rows."""

    name: ClassVar[str] = "read-one-hot-rows"
    whole_arrays: ClassVar[bool] = True
    phase: ClassVar[Phase] = "differentiated"
    unspecified: ClassVar[bool] = True  # (4)
    primitives: ClassVar[frozenset[str]] = frozenset({"dot_general", *REDUCTIONS})
    needs: ClassVar[frozenset[str]] = frozenset({"eq", "ne"})

    @property
    def rounds(self) -> bool:
        return True

    def find(self, op: Op) -> Iterator[PickedPlaces]:
        found = picked_sum(op)
        if found is not None and not is_read_at_places(op):  # (1, 2)
            number = found.picked.places[0].number.value
            says = f"only the places {number.label} are multiplied and summed up"
            yield PickedPlaces(op, says, found, about=number)

    def refuse(self, match: PickedPlaces) -> str | None:
        op, found = match.op, match.sum
        is_number = all(is_ranged(v.dtype) or v.dtype == bool for v in (*op.operands, op.result))
        if not is_number:  # (3)
            return "its numbers are not real"
        if is_divided(op) or any(map(is_sharded, op.operands)):
            return "its rows may be on several devices"
        counted = [prod(found.shape[d] for d in found.summed - found.picked.axes)]
        counted += [factor.source.value.size for factor in found.picked.factors]
        if max(counted) >= limits.COUNTED:  # (5)
            return "it has too many numbers to count those that are not finite"
        if not pays(op, found):
            return "reading the rows, and seeing whether all are finite, takes as long"
        return None

    def rewrite(self, match: PickedPlaces, rw: Rewriter) -> None:
        op, picked = match.op, match.sum.picked
        made = OrNan(_how(match), op.result.dtype)
        sources = [read(source, rw) for source in picked.sources]
        seen = []
        for factor, value in zip(picked.factors, sources[len(picked.places) :], strict=True):
            if factor.leaks:  # (3)
                *_, at = op, *loops_of_the_same(value, op)
                seen.append(rw.insert(partial(made.looked_at, factor), value, before=at))
        rw.replace(op.result, rw.typed(made, op.result.aval, *sources, *seen, before=op))
        rw.erase(op)


def _how(match: PickedPlaces) -> SumOfPlaces:
    """How it is summed up: in 32 bits, if numbers have fewer."""
    dtype = match.op.result.dtype
    is_short = dtypes.is_inexact(dtype) and dtypes.bits(dtype) < dtypes.bits(np.dtype(np.float32))
    return SumOfPlaces(match.sum, np.dtype(np.float32) if is_short else dtype)
