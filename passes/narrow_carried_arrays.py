"""Carry through an inner loop only the rows of an array that it touches.

Before::

    d = scan[8] carry(d=z) xs(i=iota8) {
      d1 = scan[4] carry(c=d) xs(j=iota4) {
        y = dynamic_slice c i j
        m = mul y 2.0
        c1 = dynamic_update_slice c m i j
        yield carry(c1)
      }
      yield carry(d1)
    }

After::

    d = scan[8] carry(d=z) xs(i=iota8) {
      row = dynamic_slice d i 0
      row1 = scan[4] carry(c=row) xs(j=iota4) {
        y = dynamic_slice c 0 j
        m = mul y 2.0
        c1 = dynamic_update_slice c m 0 j
        yield carry(c1)
      }
      d1 = dynamic_update_slice d row1 i 0
      yield carry(d1)
    }

Now each loop moves along one axis, as `stack-carried-updates` wants it.  Sound when

1. the carry is read and written by windows only (`jaxpr_opt.analysis.buffers`);
2. along one axis, every window starts at the same affine function of steps of loops further out,
   up to a constant, and is in range at every step;
3. along the others it may be anywhere; but a gather or scatter stays one unless that is known: it
   may be out of range, and in each row of a batch elsewhere.

Cost: the rows are copied out and back, so the loop must touch about as much of them.  An array that
XLA updates in place stays, unless all that is wanted of it are the rows that the last steps hold:
then it need not be at all.
Source: row by row, then element by element: https://github.com/jax-ml/jax/issues/10197.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.access import Access, read_window, write_window
from jaxpr_opt.analysis.affine import Affine
from jaxpr_opt.analysis.buffers import (
    Buffer,
    buffer,
    copied_by,
    is_in_place,
    is_made_by_a_loop,
    is_read_outside,
    original,
)
from jaxpr_opt.analysis.constants import uniform
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir import Carry, Op, Scan, Value
from jaxpr_opt.parameters import has_numbers
from jaxpr_opt.pipeline import Match, Pass
from jaxpr_opt.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows `start` to ``start + size`` along `axis`."""

    axis: int
    start: Affine
    size: int

    @property
    def held(self) -> range:
        """Those that a step after the last would find where they are."""
        turns = [(0 if s.reverse else s.length - 1, k) for s, k in self.start.steps.items()]
        last = self.start.offset + sum(step * k for step, k in turns)
        onward = sum(-k if s.reverse else k for s, k in self.start.steps.items())
        return range(last + max(onward, 0), last + min(onward, 0) + self.size)


@dataclass(frozen=True, slots=True, eq=False)
class Narrow(Match):
    """A carried array of which a loop touches some rows only."""

    buffer: Buffer
    rows: Rows


@dataclass(frozen=True)
class NarrowCarriedArrays(Pass):
    """A whole array carried through an inner loop -> the rows that it touches."""

    name: ClassVar[str] = "narrow-carried-arrays"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    even_in_place: bool = False
    """Also where XLA does as well."""

    def find(self, op: Op) -> Iterator[Narrow]:
        assert isinstance(op, Scan)
        if not isinstance(op.parent, Scan):
            return
        for carry in op.carries:
            if len(carry.param.shape) < 2 or carry.is_invariant:
                continue
            found = buffer(op, carry)
            rows = _rows(op, found) if isinstance(found, Buffer) and found.accesses else None  # (1)
            if rows is not None and isinstance(found, Buffer):
                name = carry.param.name or str(carry.param.aval)
                says = f"{rows.size} of {carry.param.shape[rows.axis]} rows of {name} are carried"
                yield Narrow(op, says, found, rows, **_told(found))

    def refuse(self, match: Narrow) -> str | None:
        scan = match.op
        assert isinstance(scan, Scan)
        window = prod(_shape(match))
        touched = scan.length * sum(prod(access.sizes) for access in match.buffer.accesses)
        if not cost_model().is_dense(touched, window):
            return "a row is much larger than what the loop reads and writes of it"
        return None if self.even_in_place else _needless(match)

    def rewrite(self, match: Narrow, rw: Rewriter) -> None:
        _narrow(match, rw)


def _told(found: Buffer) -> dict[str, Any]:
    """What the match is about: an array that is copied, or made anew for each run of the loop."""
    carry, at = found.carry, copied_by(found)
    if uniform(carry.init) == 0:
        return {"about": carry.result, "at": found.accesses[-1].op, "waste": "zeros"}
    return {"about": carry.param, "at": at, "waste": None if at is None else "copy"}


def _rows(scan: Scan, found: Buffer) -> Rows | None:
    """The rows that all accesses are in (2), along the first axis that has few."""
    for axis, n in enumerate(found.carry.param.shape):
        starts = [access.window[axis].start for access in found.accesses]
        known = [start for start in starts if start is not None]
        if len(known) < len(starts) or any(scan in s.steps or not s.steps for s in known):  # (2)
            continue
        if any(s.steps != known[0].steps for s in known):  # (2)
            continue
        low = min(s.offset for s in known)
        ends = (s.offset + a.window[axis].size for s, a in zip(known, found.accesses, strict=True))
        size = max(ends) - low
        if not cost_model().is_most(size, n):
            return Rows(axis, Affine(low, (), known[0].steps), size)
    return None


def _needless(match: Narrow) -> str | None:
    """Why the array is better left as it is: XLA updates it in place, and it has to be there."""
    found, rows = match.buffer, match.rows
    outer = _outermost(found)
    if outer is found.carry or not is_in_place(found):
        return None
    if is_read_outside(outer.result, rows.axis, rows.held) or is_made_by_a_loop(outer.init):
        return f"XLA updates {found.carry.param.name or 'the array'} in place"
    return None


def _outermost(found: Buffer) -> Carry:
    """What the array is to the outermost loop that does nothing but hand it on to the inner one."""
    carry, loop = found.carry, found.loop
    while isinstance(outer := loop.parent, Scan):
        handed = outer.carry_of(original(carry.init))
        if handed is None or original(handed.next) is not carry.result:
            break
        carry, loop = handed, outer
    return carry


def _shape(match: Narrow) -> tuple[int, ...]:
    shape = list(match.buffer.carry.param.shape)
    shape[match.rows.axis] = match.rows.size
    return tuple(shape)


def _narrow(match: Narrow, rw: Rewriter) -> None:
    scan, carry, rows = match.op, match.buffer.carry, match.rows
    assert isinstance(scan, Scan)
    start, shape = rw.steps(rows.start, before=scan), _shape(match)

    def taken(array: jax.Array, at: jax.Array) -> jax.Array:
        where = [at if d == rows.axis else 0 for d in range(len(shape))]
        return read_window(array, where, shape)

    def put(array: jax.Array, part: jax.Array, at: jax.Array) -> jax.Array:
        where = [at if d == rows.axis else 0 for d in range(len(shape))]
        return write_window(array, part, where)

    init = rw.typed(taken, carry.init.aval, carry.init, start, before=scan)
    param, result = rw.new_value(init.aval, carry.param.name), rw.new_value(init.aval)
    versions: dict[Value, Value] = {carry.param: param}
    accesses = {access.op: access for access in match.buffer.accesses}
    for op in match.buffer.ops:
        array = versions[op.operands[0]]
        access = accesses.get(op)
        if access is None:
            versions[op.result] = array
            continue
        update = () if access.kind == "read" else (access.value,)
        again = _Again(access, rows)
        aval = op.result.aval if access.kind == "read" else init.aval
        made = rw.typed(again, aval, array, *access.indices, *update, before=op)
        if access.kind == "read":
            rw.replace(op.result, made)
        else:
            versions[op.result] = made
    after = scan.next
    assert after is not None
    if carry.result.uses:
        whole = rw.typed(put, carry.result.aval, carry.init, result, start, before=after)
        rw.replace(carry.result, whole)
    new = Carry(init, param, versions[carry.next], result)
    rw.set_scan(scan, carries=[new if c.param is carry.param else c for c in scan.carries])
    for op in reversed(match.buffer.ops):
        rw.erase(op)


@dataclass(frozen=True, slots=True, eq=False)
class _Again:
    """An access, repeated on the rows that are carried."""

    access: Access
    rows: Rows

    def __call__(self, array: jax.Array, *rest: jax.Array) -> jax.Array:
        access, axis = self.access, self.rows.axis
        start = access.window[axis].start
        assert start is not None
        row = start.offset - self.rows.start.offset
        if not access.is_located and has_numbers(access.op):  # (3)
            return self._indexed(array, row, *rest)
        count = len(access.indices)
        starts: list[Any] = access.starts(*rest[:count])
        starts[axis] = row
        if access.kind == "write":
            new = access.to_window(rest[count])
            return write_window(array, new, starts)
        old = read_window(array, starts, access.sizes)
        if access.kind == "read":
            return access.from_window(old)
        new = lax.add(old, access.to_window(rest[count]))
        return write_window(array, new, starts)

    def _indexed(
        self, array: jax.Array, row: int, index: jax.Array, *update: jax.Array
    ) -> jax.Array:
        """The same gather or scatter, but for the row (3)."""
        op, at = self.access.op, self.access.component(self.rows.axis)
        rows = lax.full((*index.shape[:-1], 1), row, index.dtype)
        index = lax.concatenate([index[..., :at], rows, index[..., at + 1 :]], index.ndim - 1)
        assert op.primitive is not None
        again: jax.Array = op.primitive.bind(array, index, *update, **op.params)
        return again
