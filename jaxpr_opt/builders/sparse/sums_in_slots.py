"""Add up the windows of an inner loop in slots, one for each of its steps, then add the slots."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.sparse.scatter_chains import Chain, Piece, Pieces
from jaxpr_opt.builders.sparse.carried_scratch import carried_zeros, enclosing_scans, hand_on
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import backward_slice, depending_on
from jaxpr_opt.ir.graph import Carry, Op, Scan, Use, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import is_speculable


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """The loop `op` adds `piece` to its carry in each step, and where is known before it runs."""

    op: Scan
    carry: Carry
    piece: Piece
    axes: tuple[int, ...]
    """Those along which windows differ: there they extend by one."""
    made: tuple[Op, ...]
    """What computes the indices from streams and outer values."""

    @property
    def marks(self) -> jax.ShapeDtypeStruct:
        """A number for each window."""
        shape = self.piece.result.shape
        return jax.ShapeDtypeStruct(tuple(shape[axis] for axis in self.axes), np.int32)

    @property
    def indices(self) -> tuple[Value, ...]:
        """Those that tell windows apart."""
        return tuple(self.piece.indices[axis] for axis in self.axes)

    def read(self, marks: Any, *indices: Any) -> Any:
        """The number of a window: clamped, if the window is."""
        mark = lax.dynamic_slice_p.bind(marks, *indices, slice_sizes=(1,) * len(self.axes))
        return lax.reshape(mark, ())

    def mark(self, marks: Any, number: Any, *indices: Any) -> Any:
        """Make `number` that of a window."""
        one = lax.reshape(number, (1,) * len(self.axes))
        return lax.dynamic_update_slice_p.bind(marks, one, *indices)


def slots(chain: Chain) -> Slots | None:
    """The slots to which a loop can add all its pieces; None if it cannot."""
    (link, *others) = chain.links
    if others or not isinstance(link, Pieces) or len(link.inner.links) != 1:
        return None
    (piece,), scan = link.inner.links, link.op
    if not isinstance(piece, Piece) or piece.op.name != "dynamic_update_slice":
        return None
    sizes = zip(piece.update.shape, piece.result.shape, strict=True)
    axes = tuple(axis for axis, (size, extent) in enumerate(sizes) if size != extent)
    itemsize = np.dtype(np.int32).itemsize
    if not axes or any(piece.update.shape[axis] != 1 for axis in axes):
        return None
    if not cost_model().is_sparse(itemsize, piece.nbytes) or not _is_only_added_to(link):
        return None

    def stop(value: Value) -> bool:
        return not scan.body.defines(value) or value.op is None

    wanted = [v for v in (piece.indices[axis] for axis in axes) if not stop(v)]
    made = backward_slice(wanted, stop)
    read = {*piece.indices, *(v for op in made for v in op.operands)}
    known = all(is_speculable(op) and not op.regions for op in made)
    carried = any(carry.param in read for carry in scan.carries)
    return Slots(scan, link.carry, piece, axes, tuple(made)) if known and not carried else None


def _is_only_added_to(link: Pieces) -> bool:
    """Whether nothing but the next step's sum is made of what has been added up."""
    body, end = link.op.body, link.op.body.terminator
    made = [op for op in depending_on([link.carry.param], body.ops) if op is not end]
    sums = [link.carry.param, *(value for op in made for value in op.results)]
    leave = [use for value in sums for use in value.uses if use.op not in made]
    return leave == [Use(end, link.op.carries.index(link.carry))]


def through_slots(found: Slots, total: Value, before: Op, rw: Rewriter) -> Value:
    """Add what the loop adds up to `total`, by way of slots."""
    loop, piece, loops = found.op, found.piece, enclosing_scans(before)
    start = carried_zeros(found.marks, loops, rw)
    rows = _rows(found, rw)
    marks = rw.insert(partial(_marked, found), start, *rows, before=loop)
    zeros = rw.insert(
        lambda: jnp.zeros((loop.length, *piece.update.shape), piece.update.dtype), before=loop
    )
    sums, end = rw.new_value(zeros.aval, "sums"), rw.new_value(zeros.aval)
    operands = (sums, marks, piece.update, *found.indices)
    added = rw.insert(partial(_into_slot, found), *operands, before=loop.body.terminator)
    kept = [
        c if c.param is not found.carry.param else c._replace(next=c.param) for c in loop.carries
    ]
    rw.set_scan(loop, carries=[*kept, Carry(zeros, sums, added, end)])
    if found.carry.next.op is not None:
        rw.erase_unread(found.carry.next.op)
    hand_on(start, marks, loops, rw)
    return rw.insert(partial(_from_slots, found), total, end, *rows, before=before)


def _rows(found: Slots, rw: Rewriter) -> list[Value]:
    """The indices of all steps."""
    loop, length = found.op, found.op.length
    streams = {stream.param: stream.operand for stream in loop.streams}
    return [
        streams[index]
        if index in streams
        else rw.vectorize(found.made, index, streams, length=length, before=loop)
        for index in found.indices
    ]


def _marked(found: Slots, marks: jax.Array, *rows: jax.Array) -> jax.Array:
    def step(marks: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        number, *indices = inputs
        return found.mark(marks, number, *indices), None

    numbers = lax.iota(np.int32, found.op.length)
    return lax.scan(step, marks, (numbers, *rows))[0]


def _into_slot(found: Slots, sums: Any, marks: Any, update: Any, *indices: Any) -> Any:
    at = found.read(marks, *indices)
    old = lax.dynamic_index_in_dim(sums, at, allow_negative_indices=False)
    new = lax.add(old, lax.expand_dims(update, (0,)))  # as it is read and written: in one fusion
    return lax.dynamic_update_slice_in_dim(sums, new, at, 0, allow_negative_indices=False)


def _from_slots(found: Slots, total: jax.Array, sums: jax.Array, *rows: jax.Array) -> jax.Array:
    def step(total: jax.Array, inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        piece, *indices = inputs
        known = dict(zip(found.axes, indices, strict=True))
        zero = indices[0].dtype.type(0)
        at = [known.get(axis, zero) for axis in range(total.ndim)]
        return found.piece.add(total, piece, *at), None

    final: jax.Array = lax.scan(step, total, (sums, *rows))[0]
    return final
