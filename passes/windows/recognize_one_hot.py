"""Read and write one row at an index, where a mask with one true element selects it.

Before::

    e = eq iota i
    b1 = select_n e b y                     # y written at i
    s = select_n e 0.0 c
    r = reduce_sum s                        # c read at i

After::

    u = dynamic_slice y i
    b1 = dynamic_update_slice b u i
    v = dynamic_slice c i
    s = dynamic_update_slice 0.0 v i
    r = reshape v

``jnp.where(jnp.arange(n) == i, y, ys)`` writes one element and touches all; so does its transpose.
Sound when

1. the mask compares the positions along one axis with a number that is constant along that axis:
   one for all, or one a row;
2. the number is in range at every step: one out of range would write nothing, where an update
   writes the nearest element;
3. a sum is of one element and of zeros: x + 0 is x, up to the sign of zero.

Cost: an element instead of the array, unless elementwise ops read all of it anyway. Inside loops
only: outside, an array is made once in any case.
Source: https://github.com/jax-ml/jax/issues/13522
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
from jax import lax

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.induction import bounds
from jaxpr_opt.analysis.values.selected_cases import spread
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.analysis.windows.one_hot import OneHot, one_hot
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import axes_of, mode_of
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Value, is_in_a_loop
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import ELEMENTWISE

NARROWED = frozenset({"add", "add_any", "convert_element_type", "copy"})
"""Elementwise ops that are not computed where an operand is zero, or not at all."""

CLIP = lax.GatherScatterMode.CLIP


@dataclass(frozen=True, slots=True, eq=False)
class MaskedWrite(Match):
    """A select by a one-hot mask."""

    mask: OneHot


@dataclass(frozen=True, slots=True, eq=False)
class MaskedRead(Match):
    """A sum of zeros and of one element along the axis."""

    write: Access


@dataclass(frozen=True)
class RecognizeOneHot(Pass):
    """A select by ``arange(n) == i`` is a write at `i`; a sum of one is a read."""

    name: ClassVar[str] = "recognize-one-hot"
    whole_arrays: ClassVar[bool] = True

    primitives: ClassVar[frozenset[str]] = frozenset({"select_n", "reduce_sum"})
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while"})

    def find(self, op: Op) -> Iterator[Match]:
        if not op.result.uses or not is_in_a_loop(op):
            return
        if op.name == "select_n" and len(op.operands) == 3:
            mask = one_hot(op.operands[0])
            if mask is not None:
                says = "a select by a one-hot mask becomes a write of one row"
                yield MaskedWrite(op, says, mask, about=op.result, waste="select")
        if op.name == "reduce_sum":
            write = _only_summand(op)
            if write is not None:
                says = "a sum of one row and zeros becomes that row"
                yield MaskedRead(op, says, write, about=op.operands[0], waste="select")

    def refuse(self, match: Match) -> str | None:
        if not isinstance(match, MaskedWrite):
            return None
        mask, n = match.mask, match.op.result.shape[match.mask.axis]
        known = bounds(mask.number)
        assert known is not None  # of integers something is known
        if known[0] < mask.offset or known[1] >= mask.offset + n:
            return "the index may be out of range"  # (2)
        kept = match.op.operands[2 if mask.negated else 1]
        if uniform(kept) is not None and all(
            _takes_all(user, mask) for user in match.op.result.users
        ):
            return "the whole array is read, not the row alone"
        return None

    def rewrite(self, match: Match, rw: Rewriter) -> None:
        op = match.op
        if isinstance(match, MaskedWrite):
            new = _written(match.mask, op, rw)
        else:
            assert isinstance(match, MaskedRead)
            new = _read(match.write, op, rw)
        rw.replace(op.result, new)
        rw.erase(op)


def _takes_all(op: Op, mask: OneHot) -> bool:
    """Whether an elementwise op computes with every place along the axis, so that XLA makes the row
    and what is around it on the way; sums, and choices that are the same for all, may be narrowed.
    """
    if op.name == "select_n":
        root, axes = spread(op.operands[0])
        return (
            root.region is not None and mask.axis in axes and root.shape[axes.index(mask.axis)] > 1
        )
    return op.name in ELEMENTWISE and op.name not in NARROWED


def _only_summand(op: Op) -> Access | None:
    """The row that zeros are written around, if the sum is along the axis it is one row of (3)."""
    made_by = op.operands[0].op
    write = access(made_by) if made_by is not None else None
    if write is None or not _is_never_dropped(write):  # (3)
        return None
    touched = [axis for axis, n in enumerate(write.array.shape) if write.sizes[axis] != n]
    one = all(write.sizes[axis] == 1 for axis in touched)
    alone = tuple(touched) == axes_of(op) and len(touched) == 1
    return write if one and alone and uniform(write.array) == 0 else None  # (3)


def _is_never_dropped(write: Access) -> bool:  # (3)
    """Whether what is out of range is written to the nearest place."""
    return mode_of(write.op) in {None, CLIP} or write.is_located


def _read(write: Access, op: Op, rw: Rewriter) -> Value:
    """The row alone."""
    shape = op.result.shape
    fun = lambda row: lax.reshape(write.to_window(row), shape)  # noqa: E731
    return rw.typed(fun, op.result.aval, write.value, before=op)


def _written(mask: OneHot, op: Op, rw: Rewriter) -> Value:
    """One element along the axis, or one a row, written where the mask says so."""
    _, *cases = op.operands
    kept, new = reversed(cases) if mask.negated else cases
    rows = sorted(mask.rows)
    inner = [d for d in range(len(op.result.shape)) if d not in rows]
    window = tuple(1 if d == mask.axis else op.result.shape[d] for d in inner)

    def write(kept: jax.Array, new: jax.Array, place: jax.Array) -> jax.Array:
        starts = [place if d == mask.axis else np.zeros((), place.dtype) for d in inner]
        row = lax.dynamic_slice(new, starts, window, allow_negative_indices=False)
        return lax.dynamic_update_slice(kept, row, starts, allow_negative_indices=False)

    def fun(kept: jax.Array, new: jax.Array, number: jax.Array) -> jax.Array:
        of_rows: Callable[..., jax.Array] = write
        for passed, axis in reversed([*enumerate(rows)]):  # the axes outside are gone by then
            at = axis - passed
            of_rows = jax.vmap(of_rows, in_axes=(at, at, 0), out_axes=at)
        offset = dtypes.wrapped(number.dtype, mask.offset)
        place = lax.sub(number, offset) if mask.offset else number
        return of_rows(kept, new, lax.transpose(place, [mask.rows.index(d) for d in rows]))

    return rw.typed(fun, op.result.aval, kept, new, mask.number, before=op)
