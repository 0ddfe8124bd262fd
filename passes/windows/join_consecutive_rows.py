"""Access rows at consecutive places as one window.

Before::

    i = add t iota                      # i[k] = t + k
    x = gather[slice_sizes=(1,)] xs i
    y = scatter-add ys i u

After::

    x = gather[slice_sizes=(5,)] xs t
    y = scatter-add ys t u

``xs[t + jnp.arange(5)]``, ``xs[t - lags]`` and ``image[i + r[:, None], j + r]`` read one window,
``ys.at[t + jnp.arange(5)].add(u)`` adds to one (overlap and add, a product of polynomials, a band
of a matrix). JAX gathers and scatters their elements one by one, stores all indices for the
gradient, and no other pass knows the place of a window. Sound when

1. every component of the indices is an affine function of their places and of the steps of the
   enclosing loops; along each of their axes, rows move along one axis of the array, another for
   each, by one place;
2. all rows are in range at every step, so that clamping, dropping and filling change nothing, and
   no index is negative;
3. rows do not overlap: they are of one element along the axis they move along, so that no element
   is written or added to twice;
4. the rows are not of a batch with indices of its own, and a scatter has no function of its own.

Cost: none; an index that descends reverses the window. But XLA:CPU computes what is added in the
loop that adds it, element by element: `tanh` and its like take several times as long there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.windows.consecutive import Block, consecutive
from jaxpr_opt.analysis.windows.window_primitives import scattering
from jaxpr_opt.bridge.parameters import fill_value_of, mode_of
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Region, Scan, Stream, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Consecutive(Match):
    """A gather or scatter whose rows are one window."""

    block: Block


@dataclass(frozen=True)
class JoinConsecutiveRows(Pass[Consecutive]):
    """Gather and scatter of rows at consecutive places -> of one window."""

    name: ClassVar[str] = "join-consecutive-rows"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = frozenset({"gather", "scatter", "scatter-add"})

    def find(self, op: Op) -> Iterator[Consecutive]:
        block = consecutive(op) if op.result.uses else None  # (1-4)
        if block is not None:
            rows = " x ".join(map(str, block.access.sizes))
            yield Consecutive(op, f"{op.name} of consecutive rows: a window of {rows}", block)

    def refuse(self, match: Consecutive) -> str | None:
        access = match.block.access
        if access.kind == "add" and cost_model().is_made_one_by_one(access.value):
            return "XLA would compute the window where it is added, element by element"
        return None

    def rewrite(self, match: Consecutive, rw: Rewriter) -> None:
        op, block = match.op, match.block
        array, indices, *rows = op.operands
        start = _start(indices, op, block, rw)
        joined = partial(_joined, op, block)
        rw.replace(op.result, rw.typed(joined, op.result.aval, array, start, *rows, before=op))
        rw.erase(op)


def _start(indices: Value, op: Op, block: Block, rw: Rewriter) -> Value:
    """Where the window starts; of indices that a loop streams, only that is streamed."""
    loop = indices.owner.owner if isinstance(indices.owner, Region) else None
    stream = loop.stream_of(indices) if isinstance(loop, Scan) else None
    if not isinstance(loop, Scan) or stream is None:
        return rw.insert(block.start, indices, before=op)
    starts = rw.insert(block.start, stream.operand, before=loop)
    narrow = Stream(starts, rw.new_value(rw.row_aval(starts), indices.name))
    rw.set_scan(loop, streams=[*loop.streams, narrow])
    return narrow.param


def _joined(
    op: Op, block: Block, array: jax.Array, start: jax.Array, *rows: jax.Array
) -> jax.Array:
    """The result of the op, read or written as one window that begins at `start`."""
    whole = tuple(range(array.ndim))
    alike = {"mode": mode_of(op), "unique_indices": True, "indices_are_sorted": True}
    if op.name == "gather":
        numbers = lax.GatherDimensionNumbers(whole, (), block.indexed)
        sizes, fill = block.access.sizes, fill_value_of(op)
        return block.rows(lax.gather(array, start, numbers, sizes, fill_value=fill, **alike))
    places = lax.ScatterDimensionNumbers(whole, (), block.indexed)
    return scattering(op)(array, start, block.window(*rows), places, **alike)
