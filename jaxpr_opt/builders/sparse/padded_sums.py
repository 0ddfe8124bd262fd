"""A sum of windows in zeros, computed part by part."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import jax
from jax import lax

from jaxpr_opt.analysis.sparse.padded_sums import Cut, PaddedSum, window
from jaxpr_opt.analysis.sparse.scatter_chains import Piece
from jaxpr_opt.bridge.slicing import write_run
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.ir.graph import Value


def concatenated(found: PaddedSum, *operands: Any) -> jax.Array:
    """The sum: of each part, the sum of the windows in it, and of the other terms.

    Args:
      found: the sum.
      *operands: the window of each piece, then the other terms.
    """
    cuts = found.cuts()
    made = _summed(found, cuts, operands)
    parts = [made[cut] if cut in made else _zeros(found, cut) for cut in cuts]
    return lax.concatenate(parts, found.axis)


def written(found: PaddedSum, *operands: Any) -> jax.Array:
    """The sum: of the parts in which there are windows, written to the sum of the other terms."""
    whole = (0, found.sums[0].result.shape[found.axis])
    touched = found.touched()
    made = _summed(found, touched, operands, others=whole)
    total = made[whole] if whole in made else _zeros(found, whole)
    for cut in touched:
        total = write_run(total, made[cut], cut[0], found.axis)
    return total


def _summed(
    found: PaddedSum, cuts: list[Cut], operands: Iterable[Any], others: Cut | None = None
) -> dict[Cut, Any]:
    """The sum of each part, if it is not zero; of `others`, that of the terms of no windows."""
    given = dict(zip(found.terms, operands, strict=True))
    more = cuts if others is None else [others, *cuts]
    sums: dict[Value, dict[Cut, Any]] = {}

    def parts(term: Value) -> dict[Cut, Any]:
        if term in sums:
            return sums.pop(term)
        if term in found.pieces:
            return _parts(found.pieces[term], given[term], cuts, found.axis)
        return {cut: _cut(given[term], cut, found.axis) for cut in more}

    for op in reversed(found.sums):
        first, second = map(parts, op.operands)
        fewer, sums[op.result] = sorted((first, second), key=len)
        sums[op.result] |= {
            cut: bound(op, first[cut], second[cut]) if cut in sums[op.result] else part
            for cut, part in fewer.items()
        }
    return sums[found.sums[0].result]


def _parts(piece: Piece, array: Any, cuts: list[Cut], axis: int) -> dict[Cut, Any]:
    """The parts of a window in zeros that are not zero: the zeros beside it are left."""
    box, shape = window(piece), piece.result.shape
    low, high = box.starts[axis], box.ends[axis]
    padding = [
        (0, 0, 0) if d == axis else (start, n - end, 0)
        for d, (start, end, n) in enumerate(zip(box.starts, box.ends, shape, strict=True))
    ]
    found = {}
    for start, end in cuts[bisect_left(cuts, (low, low)) : bisect_left(cuts, (high, high))]:
        part = _cut(array, (start - low, end - low), axis)
        if any(map(any, padding)):
            part = lax.pad(part, lax.full((), 0, part.dtype), padding)
        found[start, end] = part
    return found


def _cut(array: Any, cut: Cut, axis: int) -> Any:
    return array if cut == (0, array.shape[axis]) else lax.slice_in_dim(array, *cut, axis=axis)


def _zeros(found: PaddedSum, cut: Cut) -> jax.Array:
    result, (start, end) = found.sums[0].result, cut
    shape = [end - start if d == found.axis else n for d, n in enumerate(result.shape)]
    return lax.full(shape, 0, result.dtype)
