"""Move the writes of windows into all rows of an array from a loop over the rows to after it.

Before::

    ys = scan[8] xs(x=c) {
      v = f x
      w = dynamic_update_slice x v i
      y = g w
      yield ys(w)
    }

After::

    vs = scan[8] xs(x=c) {
      v = f x
      w = dynamic_update_slice x v i
      y = g w
      yield ys(v)
    }
    ys = dynamic_update_slice c vs 0 i

A loop over layers takes the caches of all layers as one array and gives them back as one: every
step of decoding makes the whole array anew, and no pass sees that one row of each cache is written.
Sound when

1. what a step stacks is a row that it streams, or zeros, to which it writes or adds windows, one
   after the other;
2. the windows of all rows are written as one window only where its place is known before the loop,
   or computed from what is by ops that may run even if the loop takes no step: then all are out of
   range together. Elsewhere the loop stacks their places, too, and each is written where it was, as
   `vmap` would.

Cost: the windows are stacked, not the rows, of which they are a small part. In a loop only: there
the array is written to in place. Zeros only where sums alone read them, as the cotangents of tables
that a loop over layers streams, of which each layer reads a row: then
`accumulate-sparse-cotangents` adds the windows in place (48 steps of 6 tables of 256 rows of 32
numbers: 0.12 of the time of plain JAX).
Source: the caches of a decoder whose layers are a scan, as in MaxText and `flax.linen.scan`, where
each layer has an index of its own.
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
from jaxpr_opt.analysis.windows.access import Access, writes_in_a_row
from jaxpr_opt.bridge.slicing import write_window
from jaxpr_opt.builders.residual_transfer import stacked
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.dataflow import backward_slice
from jaxpr_opt.ir.graph import Op, Scan, Stack, Stream, Value
from jaxpr_opt.ir.nesting import dominates
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS, is_speculable


@dataclass(frozen=True, slots=True, eq=False)
class WrittenRows(Match):
    """A stack of rows of a stream, or of zeros if that is None, and the windows that a step writes
    to one, first to last.
    """

    op: Scan
    stack: Stack
    stream: Stream | None
    writes: tuple[Access, ...]


@dataclass(frozen=True)
class WriteAfterLoops(Pass[WrittenRows]):
    """Stack rows with a window written -> stack the windows, and write them to all rows at once."""

    name: ClassVar[str] = "write-after-loops"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[WrittenRows]:
        if loop_of(op) is None:
            return
        for stack in op.stacks:
            writes = tuple(writes_in_a_row(stack.value, op.body, {"write", "add"}))[::-1]
            stream = op.stream_of(writes[0].array) if writes else None
            if stream is not None and stack.result.uses:  # (1)
                says = f"windows of {stream.operand.label} are written after the loop over its rows"
                yield WrittenRows(op, says, stack, stream, writes, about=stack.result)
            elif writes and uniform(writes[0].array) == 0:  # (1)
                says = f"windows of {stack.result.label} are written to zeros after the loop"
                yield WrittenRows(op, says, stack, None, writes, about=stack.result)

    def refuse(self, match: WrittenRows) -> str | None:
        writes = match.writes
        if cost_model().is_most(sum(write.nbytes for write in writes), match.stack.value.nbytes):
            return "the windows are most of a row"
        result = match.stack.result
        if match.stream is None and not all(use.op.name in SUMS for use in result.uses):
            return f"{result.label} is not only added to others"
        return None

    def rewrite(self, match: WrittenRows, rw: Rewriter) -> None:
        scan, stream, after = match.op, match.stream, match.op.next
        assert after is not None
        made = match.stack.result.aval
        array = rw.full(0, made, before=after) if stream is None else stream.operand
        for write in match.writes:
            of_rows = () if _is_known_before(write, scan) else _of_steps(write, scan)  # (2)
            moved = {} if of_rows else rw.clone(_places(write, scan), {}, scan)
            moved |= {v: stacked(v, scan, rw) for v in of_rows}
            places = (moved.get(v, v) for v in write.indices)
            operands = array, stacked(write.value, scan, rw), *places
            axes = tuple(0 if v in of_rows else None for v in write.indices)
            each = partial(_to_all_rows, write, axes)
            array = rw.typed(each, made, *operands, before=after)
        rw.replace(match.stack.result, array)
        rw.set_scan(scan, stacks=[s for s in scan.stacks if s.result is not match.stack.result])


def _places(write: Access, scan: Scan) -> list[Op]:
    """The ops of a step that compute where the window is."""
    return backward_slice(write.indices, lambda v: not scan.body.defines(v))


def _of_steps(write: Access, scan: Scan) -> list[Value]:
    """The values of a step that say where the window is."""
    return [v for v in write.indices if scan.body.defines(v)]


def _is_known_before(write: Access, scan: Scan) -> bool:
    """Whether what is there before the loop says where the window is."""
    ops = _places(write, scan)
    made = {v for op in ops for v in op.results}
    leaves = {*write.indices, *(v for op in ops for v in op.operands)} - made
    movable = all(is_speculable(op) and not op.regions for op in ops)
    return movable and all(dominates(v, scan) for v in leaves)


def _to_all_rows(
    write: Access,
    axes: tuple[int | None, ...],
    array: jax.Array,
    values: jax.Array,
    *indices: jax.Array,
) -> jax.Array:
    """The array with a window written to, or added to, in each row: at one place, or where an index
    of each row, along an axis, says.
    """
    if write.op.name == "dynamic_update_slice" and 0 not in axes:
        return write_window(array, values, (lax.full_like(indices[0], 0), *indices))
    written: jax.Array = jax.vmap(write.again, (0, 0, *axes))(array, values, *indices)
    return written
