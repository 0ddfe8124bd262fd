"""Rearrange the rows of a carried buffer once after the loop, not in each step.

Before::

    b = scan[8] carry(b=z) xs(i=iota, a=as, x=xs) {
      g = gather b a
      d = dynamic_update_slice g x i 0
      yield carry(d)
    }

After::

    s, r = scan[8] xs(a=as, x=xs) {
      m = gather iota4 a
      yield ys(m, x)
    }
    k, b = scan[8, reverse] carry(at=iota4) xs(m=s, x=r) {
      y = gather x at
      at1 = gather m at
      yield carry(at1) ys(y)
    }

A particle filter keeps the paths of its particles, ``paths = paths[:, ancestors].at[t].set(x)``,
beam search the tokens of its beams, ``tokens = tokens[parents].at[:, t].set(token)``.  Each step
moves all that has been written so far.  By hand one stores each step's row and ancestors, and
follows the ancestors back after the loop.  Gathers of gathers are gathers of composed indices.
Sound when

1. a step makes the buffer's next value from the last one by gathers and one write of a row, and
   nothing else reads a version of it;
2. every gather rearranges all rows alike: elements change places along other axes than the one
   that the rows lie along, and those that are out of range are filled with one value;
3. the row is in range, and moves on by one in each step; the loop takes at least one step.

Rows that are not written are rearranged by all steps' gathers at once.

Cost: a step stacks a row and the number of each place, and the loop back reads both.  So it fires
if both are a small part of the buffer.  In a gradient the order of summation may change, as if the
program had been written so: the cotangents of an element that several others are copies of are
added at once, not step by step.
Source: `flax.examples` and `t5x.decoding` gather all tokens in each step of beam search; Jacob,
Murray and Rubenthaler, "Path storage in the particle filter" (2015).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from jaxpr_opt.analysis.carried.histories import BufferHistory, history
from jaxpr_opt.builders.carried.traced_rows import trace_back
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Rearranged(Match):
    """Carries that are rearranged together; or why one is not."""

    op: Scan
    group: tuple[BufferHistory, ...]
    why: str | None = None


@dataclass(frozen=True)
class TraceBackRows(Pass[Rearranged]):
    """A buffer whose rows each step rearranges -> rows, and where they are from."""

    name: ClassVar[str] = "trace-back-rows"
    after: ClassVar[tuple[After, ...]] = (
        After(
            "merge-common-subexpressions", "buffers that are rearranged alike have one index then"
        ),
    )
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)
    needs: ClassVar[frozenset[str]] = frozenset({"gather"})

    def find(self, op: Scan) -> Iterator[Rearranged]:
        groups: dict[object, list[BufferHistory]] = {}
        for carry in op.carries:
            found = history(op, carry)
            if isinstance(found, str):
                yield Rearranged(op, _says([carry.param]), (), found, about=carry.param)
            elif found is not None:
                groups.setdefault(found.key, []).append(found)
        for group in groups.values():
            params = [found.carry.param for found in group]
            at = group[0].gathers[0].op
            yield Rearranged(op, _says(params), tuple(group), about=params[0], at=at, waste="copy")

    def refuse(self, match: Rearranged) -> str | None:
        if match.why is not None:
            return match.why  # (1, 2, 3)
        if match.op.length < 1:
            return "the loop has no steps"  # (3)
        rows = sum(found.write.nbytes for found in match.group)
        places = prod(match.group[0].places)
        moved = sum(found.carry.param.nbytes for found in match.group)
        if not cost_model().is_sparse(2 * (rows + places), moved):
            return "a row is a large part of the buffer"
        return None

    def rewrite(self, match: Rearranged, rw: Rewriter) -> None:
        trace_back(match.op, match.group, rw)


def _says(params: Sequence[Value]) -> str:
    names = ", ".join(param.name or param.type for param in params)
    return f"rows of {names} are stacked, and rearranged after the loop"
