"""Privatize a reduction: sum the windows of a step in an array of their own before adding them to
the accumulator, because ``acc + (u + v)`` is not ``(acc + u) + v``.

Either in *slots*, where an inner loop adds one window in each of its n steps: there are n slots,
each as large as a window, and additions to the same window share a slot. A table with one number
for each window of the array gives its slot; a loop over the steps first marks each window with the
number of the last step that adds to it. The marks need no clearing, because only marks of this loop
are read::

    c, m = scan[k] carry(c=b, m=marks) xs(us=us, is=is) {
      m1 = scan[n] carry(m=m) xs(i=is, j=iota) { yield carry(m[i] = j) }
      s = scan[n] carry(s=zeros) xs(u=us, i=is) { ..s[m1[i]] += u.. }
      c1 = scan[n] carry(c=c) xs(s=s, i=is) { yield carry(c[i] += s) }
      yield carry(c1, m1)
    }

Or in an *array* like the accumulator, which the outer loop carries, and which is zero between its
steps. Its windows are then moved one by one: added to the accumulator, and cleared, so that a
window that recurs adds zero. This handles windows of any form, several loops, and nests of loops::

    c, s = scan[k] carry(c=b, s=zeros) xs(us=us, is=is) {
      t = scan[n] carry(t=s) xs(u=us, i=is) { ..t[i] += u..; yield carry(t) }
      c1, t1 = scan[n] carry(c=c, t=t) xs(i=is) { ..c[i] += t[i]; t[i] = 0..; yield carry(c, t) }
      yield carry(c1, t1)
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.windows.scatter_chains import Chain, Link, Piece, Pieces
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Carry, Op, Scan, Stack, Use, Value, backward_slice, depending_on
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import is_pure, is_speculable

# ---------------------------------------------------------------- slots


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
    loop, piece, loops = found.op, found.piece, _loops(before)
    start = _carried_zeros(found.marks, loops, rw)
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
        erase_unread(found.carry.next.op, rw)
    _hand_on(start, marks, loops, rw)
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


# ---------------------------------------------------------------- an array


def through_array(chain: Chain, total: Value, before: Op, rw: Rewriter) -> Value:
    """Add the pieces of a chain that starts at zero to `total`, by way of a second array."""
    links, loops = chain.links, _loops(before)
    filled = start = _carried_zeros(total.aval, loops, rw)
    for number, link in enumerate(links):
        if isinstance(link, Pieces):
            rw.set_operand(link.op, link.op.results.index(link.result), filled)
            filled = link.result
        else:
            following = (each.op for each in links[number:] if isinstance(each, Pieces))
            operands = (filled, link.update, *link.indices)
            filled = rw.insert(link.add, *operands, before=next(following, before))
    moves = [_exposed(link, rw) for link in links]
    total, cleared = _moved(moves, total, filled, before, rw, {})
    _hand_on(start, cleared, loops, rw)
    if chain.root is not None and chain.root.op is not None:
        erase_unread(chain.root.op, rw)
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """A loop over the windows that a loop touches; `rows` are their indices."""

    scan: Scan
    inner: list[Piece | Moves]
    rows: dict[Value, Value]


def _exposed(link: Link, rw: Rewriter) -> Piece | Moves:
    """Make the indices of a loop known outside of it."""
    if isinstance(link, Piece):
        return link
    scan = link.op
    inner = [_exposed(each, rw) for each in link.inner.links]
    rows: dict[Value, Value] = {}
    for value in (v for each in inner for v in _read_by(each)):
        if value in rows or not scan.body.defines(value):
            continue
        stream = scan.stream_of(value)
        stack = next((s for s in scan.stacks if s.value is value), None)
        if stream is not None:
            rows[value] = stream.operand
        elif stack is not None:
            rows[value] = stack.result
        else:
            rows[value] = rw.new_value(rw.stacked_aval(value, scan.length), value.name)
            rw.set_scan(scan, stacks=[*scan.stacks, Stack(value, rows[value])])
    return Moves(scan, inner, rows)


def _read_by(move: Piece | Moves) -> Sequence[Value]:
    if isinstance(move, Piece):
        return move.indices
    inside = [v for each in move.inner for v in _read_by(each) if v not in move.rows]
    return [*move.rows.values(), *inside]


def _moved(
    moves: Sequence[Piece | Moves],
    total: Value,
    scratch: Value,
    before: Op,
    rw: Rewriter,
    here: dict[Value, Value],
) -> tuple[Value, Value]:
    """Move every window from `scratch` to `total`; `here` is what indices are before `before`."""
    for move in moves:
        if isinstance(move, Piece):
            indices = [here.get(v, v) for v in move.indices]
            take = partial(_take, move)
            total, scratch = rw.insert_many(take, total, scratch, *indices, before=before)
            continue
        rows = list(move.rows)
        body = rw.new_region([total, scratch, *rows])
        inside = {**here, **dict(zip(rows, body.params[2:], strict=True))}
        scan = rw.new_scan(
            body,
            [total, scratch],
            [here.get(v, v) for v in move.rows.values()],
            [],
            length=move.scan.length,
            reverse=move.scan.reverse,
            like=move.scan,
            before=before,
        )
        start, zeros = body.params[:2]
        ends = _moved(move.inner, start, zeros, body.terminator, rw, inside)
        rw.set_outputs(body, ends)
        total, scratch = scan.results
    return total, scratch


def _take(piece: Piece, total: Any, scratch: Any, *indices: Any) -> tuple[Any, Any]:
    """Add a window of `scratch` to `total` and clear it.

    It is cleared with zeros that are computed from the sum, as nothing exceeds infinity: else XLA
    does not know that the sum comes first, and copies `scratch` in every step (jax 0.10 to 0.12).
    """
    old, window = piece.read(total, *indices), piece.read(scratch, *indices)
    total = piece.write(total, lax.add(old, window), *indices)
    moved = piece.read(total, *indices)
    size = lax.real(moved) if jnp.iscomplexobj(moved) else moved
    zero = lax.convert_element_type(lax.gt(size, lax.full_like(size, np.inf)), moved.dtype)
    return total, piece.write(scratch, zero, *indices)


# ---------------------------------------------------------------- both


def _loops(op: Op) -> list[Scan]:
    """The scans that an op is in, from the inside out, as long as there is nothing in between."""
    found: list[Scan] = []
    while isinstance(op.parent, Scan):
        op = op.parent
        found.append(op)
    return found


def _carried_zeros(aval: Any, loops: Sequence[Scan], rw: Rewriter) -> Value:
    """Zeros made before the outermost loop and carried by all, as they are in the innermost."""
    made = rw.insert(lambda: jnp.zeros(aval.shape, aval.dtype), before=loops[-1])
    for loop in reversed(loops):
        param, end = rw.new_value(made.aval, "scratch"), rw.new_value(made.aval)
        rw.set_scan(loop, carries=[*loop.carries, Carry(made, param, param, end)])
        made = param
    return made


def _hand_on(start: Value, end: Value, loops: Sequence[Scan], rw: Rewriter) -> None:
    """Make each loop hand `end` to its next step, from the inside out; it came in as `start`."""
    for loop in loops:
        carries = [c._replace(next=end) if c.param is start else c for c in loop.carries]
        ((start, end),) = [(c.init, c.result) for c in carries if c.next is end]
        rw.set_scan(loop, carries=carries)


def erase_unread(op: Op, rw: Rewriter) -> None:
    """Erase an op that nothing reads, and what was computed for it alone."""
    if op.region is None or op.regions or not is_pure(op) or any(v.uses for v in op.results):
        return
    operands = op.operands
    rw.erase(op)
    for value in operands:
        if value.op is not None:
            erase_unread(value.op, rw)


def is_less_elsewhere(chain: Chain, size: int, touched: int) -> bool:
    """Whether summing so many windows in another place is no slower than adding dense arrays.

    A step through slots is short.  From a second array each window is read, added to the first,
    written, and cleared.
    """
    prices = cost_model()
    if slots(chain) is not None:
        seconds = prices.loop_seconds(touched, 0)
    else:
        seconds = prices.loop_seconds(4 * touched, size)
    return prices.is_sparse(chain.nbytes, size) and seconds <= prices.moved(size)


def one_by_one(chain: Chain, array: Value, op: Op, rw: Rewriter) -> Value:
    """The array with each piece added to it: the replacement of the sum `op`."""
    for link in chain.links:
        assert isinstance(link, Piece)
        operands = (array, link.update, *link.indices)
        array = rw.typed(link.add, op.result.aval, *operands, before=op)
    return array
