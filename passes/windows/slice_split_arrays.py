"""Slice what is split into parts, where the parts are windows of a buffer or of zeros.

Before::

    z = dynamic_update_slice (broadcast_in_dim 0.0) v i
    a, b = split[sizes=(3, 5)] z

After::

    z = dynamic_update_slice (broadcast_in_dim 0.0) v i
    a = slice[:3] z
    b = slice[3:] z

The transpose of a concatenation splits a cotangent, that of a stack unstacks it. The laws of
windows know slices: `map-before-writing` makes a window in the zeros of each part, `put-parts-back`
finds parts of a carry that are written to and put together again. Sound because a part is a slice,
and so XLA makes it; a row of what is unstacked is one without its axis.

Cost: nothing. Only in loops: of zeros with a window in them, or of what the loop carries, or a part
of that, as in ``keys, values = caches[layer]``.
Source: `jax.lax.split`, the transpose of `jax.lax.concatenate` since JAX 0.4.36.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.windows.window_primitives import UPDATE
from jaxpr_opt.bridge.parameters import dimension_of, sizes_of
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.graph import Op, Value, is_sized
from jaxpr_opt.ir.rewriter import Rewriter

_PARTS = frozenset({"dynamic_slice", "reshape", "slice", "squeeze"})


@dataclass(frozen=True, slots=True, eq=False)
class SplitArray(Match):
    """An op that takes an array apart."""


@dataclass(frozen=True)
class SliceSplitArrays(Pass[SplitArray]):
    """Parts of an array -> slices of it."""

    name: ClassVar[str] = "slice-split-arrays"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"split", "unstack"})
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while"})

    def find(self, op: Op) -> Iterator[SplitArray]:
        (array,) = op.operands
        if _is_a_window_in_zeros(array) or _is_carried(array, op):
            says = f"the parts of {array.label} are slices"
            yield SplitArray(op, says, about=array, is_cleanup=True)

    def refuse(self, match: SplitArray) -> str | None:
        values = (*match.op.operands, *match.op.results)
        if not all(is_sized(v.shape) for v in values):
            return "its shape is not known"
        return "its parts may be on several devices" if any(map(is_sharded, values)) else None

    def rewrite(self, match: SplitArray, rw: Rewriter) -> None:
        op, axis = match.op, dimension_of(match.op)
        sizes = sizes_of(op) if op.name == "split" else (1,) * len(op.results)
        first = 0
        for result, size in zip(op.results, sizes, strict=True):
            if result.uses:
                cut = partial(_part, axis, first, size, op.name == "unstack")
                rw.replace(result, rw.typed(cut, result.aval, *op.operands, before=op))
            first += size
        rw.erase(op)


def _part(axis: int, first: int, size: int, is_row: bool, array: jax.Array) -> jax.Array:
    part = lax.slice_in_dim(array, first, first + size, axis=axis)
    rest = [n for d, n in enumerate(array.shape) if d != axis]
    return lax.reshape(part, rest) if is_row else part


def _is_a_window_in_zeros(array: Value) -> bool:
    write = array.op
    is_write = write is not None and write.name in UPDATE and loop_of(write) is not None
    return is_write and write is not None and uniform(write.operands[0]) == 0


def _is_carried(array: Value, op: Op) -> bool:
    """Whether an array is what the loop carries, or a part of that."""
    loop = loop_of(op)
    while array.op is not None and array.op.name in _PARTS:
        array = array.op.operands[0]
    carries = () if loop is None else loop.carries
    return any(c.param is array and c.next is not array for c in carries)
