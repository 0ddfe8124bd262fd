"""Read windows of a carried buffer before a step overwrites it, so that it need not be copied.

Before::

    c_n = scan[n] carry(c=c_0) xs(i, j) {
      x = dynamic_slice c i
      d = dynamic_update_slice c x j
      yield carry(d)
    }

After::

    c_n = scan[n] carry(c=c_0) xs(i, j) {
      x = dynamic_slice c i
      y, e = optimization_barrier x c
      d = dynamic_update_slice e y j
      yield carry(d)
    }

XLA overwrites a buffer only when it knows that it has been read.  It does not order reads and
writes that do not depend on each other; it fuses a read with a write, and a write with what
computes with the whole buffer; and it repeats a write in the read that follows.  Each time it
copies the buffer, in every step.  Barriers keep them apart: one between the reads of a version and
its overwriting, one between the write that made the version and its reads, one between a write that
has read the buffer and what computes with all of it.  A barrier is the identity, so it is always
sound.  It is there where

1. the loop hands one buffer on, from the start of a step to its end: by writes of windows and
   elementwise;
2. all else that reads the version that is overwritten are windows, in the loop's body, at places
   that do not depend on the write, nor on an op that must stay behind one that is not needed;
3. something other than the write is made of what is read, or something whole of what is written:
   XLA handles ``c[i] = f(c[j])`` by itself;
4. the buffer is large enough for a copy to matter;
5. nothing differentiates the loop any more (the final phase), and XLA keeps a barrier until it has
   placed its copies: since JAX 0.11.

Cost: ops on both sides of a barrier are not fused.
Source: https://github.com/jax-ml/jax/issues/17845, https://github.com/jax-ml/jax/issues/17640.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from jax import lax

from jaxpr_opt.analysis.access import WRITES, Access, access
from jaxpr_opt.analysis.buffers import is_read_for
from jaxpr_opt.analysis.devices import keep_barriers
from jaxpr_opt.ir import Op, Phase, Region, Scan, Value, While, backward_slice
from jaxpr_opt.journal import Waste
from jaxpr_opt.pipeline import Match, Pass
from jaxpr_opt.rewriter import Rewriter
from jaxpr_opt.traits import ELEMENTWISE, can_move

BARRIER = "optimization_barrier"
MIN_BYTES = 4096
"""Copying less costs no more than a step of a loop does anyway."""


@dataclass(frozen=True, slots=True, eq=False)
class Overwriting(Match):
    """A write into a buffer that a loop carries, and the other ops that read what it overwrites."""

    write: Access
    body: Region
    readers: tuple[Op, ...]
    read_for_others: bool
    whole_is_read: bool


@dataclass(frozen=True)
class ReadBeforeOverwriting(Pass):
    """Read and overwrite -> read, barrier, overwrite."""

    name: ClassVar[str] = "read-before-overwriting"
    phase: ClassVar[Phase] = "final"
    primitives: ClassVar[frozenset[str]] = WRITES

    def find(self, op: Op) -> Iterator[Overwriting]:
        write, body = access(op), _body(op)
        if write is None or body is None or write.array.nbytes < MIN_BYTES:  # (4)
            return
        readers = tuple(each for each in write.array.users if each is not op)
        for_others = not all(is_read_for(op, each) for each in readers)
        whole = bool(readers) and any(each.name in ELEMENTWISE for each in op.result.users)
        if for_others or whole:  # (3)
            says = f"{write.array.label} is read before it is overwritten, not copied"
            waste: Waste | None = "copy" if for_others and _are_windows(readers, whole) else None
            args = op, says, write, body, readers, for_others, whole
            yield Overwriting(*args, about=op.result, waste=waste)

    def refuse(self, match: Overwriting) -> str | None:
        write, body = match.write, match.body
        name = write.array.label
        if not _is_handed_on(write, body):  # (1)
            return f"{name} is not one buffer from the start of a step to its end"
        for reader in match.readers:  # (2)
            found = access(reader)
            if found is None or found.kind != "read" or found.array is not write.array:
                return f"{name} is read whole by {reader.name}"
            if reader.region is not body:
                return f"{name} is read inside of {reader.parent.name if reader.parent else ''}"
        first, other = _schedule(match)
        if match.op in first:
            return f"where {name} is read depends on what overwrites it"
        if not all(can_move(op) for op in first if body.order(op) > body.order(other)):
            return f"what tells where {name} is read must stay where it is"
        if not keep_barriers():  # (5)
            return "this version of XLA drops barriers before it places copies"
        return None

    def rewrite(self, match: Overwriting, rw: Rewriter) -> None:
        body, array = match.body, match.write.array
        if match.whole_is_read:
            assert match.op.next is not None
            _barred(rw, [match.op.result], match.op.next, ())
        if not match.read_for_others:
            return
        first, other = _schedule(match)
        for op in first:
            if body.order(op) > body.order(other):
                rw.move(op, other)
        if array.op is not None and array.op.name != BARRIER:
            earliest = min(match.readers, key=body.order)
            array = _barred(rw, [array], earliest, ())[0]
        _barred(rw, [*(reader.result for reader in match.readers), array], other, first)


def _barred(rw: Rewriter, values: list[Value], before: Op, but: Iterable[Op]) -> tuple[Value, ...]:
    """A barrier that `values` go through on their way to all that reads them, `but` for some."""
    made = rw.insert_many(lambda *given: lax.optimization_barrier(given), *values, before=before)
    unbarred = {made[0].op, *(each for op in but for each in op.walk())}
    for old, new in zip(values, made, strict=True):
        rw.replace(old, new, lambda use: use.op not in unbarred)
    return made


def _are_windows(readers: Iterable[Op], whole: bool) -> bool:
    """Whether windows are all that is read: where the whole is, a copy is little besides."""
    known = map(access, readers)
    return not whole and all(each is not None and each.kind == "read" for each in known)


def _body(op: Op) -> Region | None:
    """The body of a loop that an op is right in."""
    loop = op.parent
    return op.region if isinstance(loop, Scan | While) and op.region is loop.body else None


def _schedule(match: Overwriting) -> tuple[dict[Op, None], Op]:
    """The ops of the body that must run before the reads, and these, in program order; and the
    first op that is none of them.
    """
    roots = [match.write.array, *(reader.result for reader in match.readers)]
    found = set(backward_slice(roots, lambda value: value.region is not match.body))
    first = dict.fromkeys(op for op in match.body.ops if op in found)
    return first, next(op for op in match.body.ops if op not in first)


def _is_handed_on(write: Access, body: Region) -> bool:
    """Whether what a write overwrites is a carry's at the start of a step, and what it makes the
    same carry's at the end.
    """
    loop = body.owner
    assert isinstance(loop, Scan | While)
    return any(
        _becomes(carry.param, write.array) and _becomes(write.op.result, carry.next)
        for carry in loop.carries
    )


def _becomes(earlier: Value, later: Value) -> bool:
    """Whether one version of a buffer is made of another in place: by writes, barriers and
    elementwise ops.
    """
    pending, seen = [later], {later}
    while pending:
        version = pending.pop()
        if version is earlier:
            return True
        op = version.op
        if op is None or op.region is not earlier.region:
            continue
        if op.name == BARRIER:
            made_of = [op.operands[op.results.index(version)]]
        elif op.name in ELEMENTWISE:
            made_of = [
                v for v in op.operands if v.shape == version.shape and v.dtype == version.dtype
            ]
        else:
            found = access(op)
            made_of = [found.array] if found is not None and found.kind != "read" else []
        pending += [v for v in made_of if v not in seen]
        seen.update(made_of)
    return False
