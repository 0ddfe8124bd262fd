"""Keep what a residual is cheaply made from, where that is smaller, and make it again where it is
read.

Before::

    h, r, k = scan[8] carry(c=z) xs(p=ps) {
      m = broadcast_in_dim[shape=(5, 4)] p
      w1 = select_n m w0 w
      t = tanh (dot_general c w1)
      s = sub 1.0 t
      yield carry(t) ys(w1, t, s)
    }
    g = scan[8, reverse] carry(c=ct) xs(a=r, b=k, d=q) { f a b d }

After::

    h, k = scan[8] carry(c=z) xs(p=ps) {
      m = broadcast_in_dim[shape=(5, 4)] p
      w1 = select_n m w0 w
      t = tanh (dot_general c w1)
      yield carry(t) ys(t)
    }
    g = scan[8, reverse] carry(c=ct) xs(p=ps, b=k) {
      m = broadcast_in_dim[shape=(5, 4)] p
      a = select_n m w0 w
      d = sub 1.0 b
      f a b d
    }

Sound when

1. the stack is read only as a stream of other loops, row i in step i;
2. its value is made by few cheap ops, which are repeated in the loops that read it, from values
   defined outside of the loop, rows of its streams, and values that are stacked, now or already.

Cost: the values newly stacked are smaller than the one no longer stacked.  Cheap ops are repeated
in the reading loop; where nothing else needs them, they only move.
Source: the masks of a vmapped cond, https://github.com/jax-ml/jax/issues/8239 with a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.ir import Constant, Op, Scan, Stack, Stream, Value, backward_slice
from jaxpr_opt.pipeline import Match, Pass
from jaxpr_opt.rewriter import Rewriter
from jaxpr_opt.traits import is_cheap

MAX_DEPTH = 8
"""How many ops in a row are repeated for one residual."""


@dataclass(frozen=True, slots=True, eq=False)
class Wide(Match):
    """A stack read as stream of `readers`, and the values of a step it would be made from."""

    stack: Stack
    readers: tuple[tuple[Scan, Stream], ...]
    leaves: dict[Value, int]
    """With the bytes a step that each is to be stacked for."""


@dataclass(frozen=True)
class NarrowResiduals(Pass):
    """Store less and recompute the cheap rest: masks before they are spread, t instead of 1 - t."""

    name: ClassVar[str] = "narrow-residuals"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Op) -> Iterator[Wide]:
        assert isinstance(op, Scan)
        stacked = {s.value: s.result for s in op.stacks}
        for stack in op.stacks:
            value = stack.value
            if value.op is None or value.region is not op.body or not is_cheap(value.op):
                continue
            readers = _readers(stack.result)  # (1)
            if readers:
                leaves = _cheapest(value, op, stacked, MAX_DEPTH)  # (2)
                sources = ", ".join(map(_name, leaves)) or "outer values"
                says = f"{_name(value)} is made again from {sources}"
                yield Wide(op, says, stack, readers, leaves)

    def refuse(self, match: Wide) -> str | None:
        value = match.stack.value
        nbytes = sum(match.leaves.values())
        if nbytes >= value.nbytes:
            takes = f"{_name(value)} takes {value.nbytes} bytes a step"
            return f"{takes}, what it is made from {nbytes}"
        return None

    def rewrite(self, match: Wide, rw: Rewriter) -> None:
        scan, value = match.op, match.stack.value
        assert isinstance(scan, Scan)
        rows = _rows(scan, match.leaves, rw)
        made = backward_slice([value], lambda v: v in match.leaves or not scan.body.defines(v))
        for reader, stream in match.readers:
            mapping = _read(reader, rows, rw)
            assert reader.body.first is not None
            rw.clone(made, mapping, reader.body.first)
            rw.replace(stream.param, mapping[value])


def _readers(result: Value) -> tuple[tuple[Scan, Stream], ...]:
    """The streams that read a stack, if nothing else does and any is read in turn (1)."""
    found = []
    for use in result.uses:
        if not isinstance(use.op, Scan) or use.position < use.op.num_carries:
            return ()
        stream = use.op.streams[use.position - use.op.num_carries]
        if stream.param.uses:
            found.append((use.op, stream))
    return tuple(found)


def _cheapest(
    value: Value, scan: Scan, stacked: dict[Value, Value], depth: int
) -> dict[Value, int]:
    """Values of a step from which a value can be made, for the fewest bytes stacked anew (2)."""
    if isinstance(value, Constant) or not scan.body.defines(value):
        return {}
    if depth < MAX_DEPTH and (value in stacked or scan.stream_of(value) is not None):
        return {value: 0}
    whole = {value: value.nbytes}
    if depth == 0 or value.op is None or not is_cheap(value.op):
        return whole
    parts: dict[Value, int] = {}
    for operand in value.op.operands:
        parts |= _cheapest(operand, scan, stacked, depth - 1)
    return parts if depth == MAX_DEPTH or sum(parts.values()) < value.nbytes else whole


def _rows(scan: Scan, leaves: Iterable[Value], rw: Rewriter) -> dict[Value, Value]:
    """For each value of a step, the array that has it as its rows: stacked, streamed, or stacked
    from now on.
    """
    rows = {s.param: s.operand for s in scan.streams} | {s.value: s.result for s in scan.stacks}
    new = [
        Stack(v, rw.new_value(rw.stacked_aval(v, scan.length), v.name))
        for v in leaves
        if v not in rows
    ]
    if new:
        rw.set_scan(scan, stacks=[*scan.stacks, *new])
    rows.update((s.value, s.result) for s in new)
    return {v: rows[v] for v in leaves}


def _read(reader: Scan, rows: dict[Value, Value], rw: Rewriter) -> dict[Value, Value]:
    """Make the rows streams of a loop; returns the parameters that stand for the values."""
    known = {s.operand: s for s in reader.streams}
    new = {
        whole: Stream(whole, rw.new_value(value.aval, value.name))
        for value, whole in rows.items()
        if whole not in known
    }
    if new:
        rw.set_scan(reader, streams=[*reader.streams, *new.values()])
    return {value: (known | new)[whole].param for value, whole in rows.items()}


def _name(value: Value) -> str:
    return value.name or (value.op.name if value.op is not None else str(value.aval))
