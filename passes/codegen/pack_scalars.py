"""Compute isomorphic scalars as one vector, in loops that carry many of them.

Before::

    a, b, ... = scan[256] carry(a=0.0, b=0.0, ...) xs(x=xs) {
      s = sub x a
      t = tanh s
      a1 = add a t
      s1 = sub a b
      t1 = tanh s1
      b1 = add b t1
      ...
      yield carry(a1, b1, ...)
    }

After::

    row = scan[256] carry(row=zeros) xs(x=xs) {
      v = concatenate x row[:-1]
      s = sub v row
      t = tanh s
      row1 = add row t
      yield carry(row1)
    }

Sound when

1. the ops of a pack do the same to elements of one type, and none depends on the result of another;
2. on vectors they give, bit by bit, what they give on scalars: vectors of transcendental functions
   are padded to a multiple of `VECTOR` first, and functions whose rounding depends on the position
   stay scalars;
3. ops with effects stay in their order;
4. stacks of scalars become rows only if the loop that reads them is their only reader.

A sum of scalars stays a sum of scalars, in its order. A `split` takes an element that is needed as
a scalar out of its vector: its transpose is a concatenation, where the transpose of reading an
element is a vector of zeros for each. All other inserted ops only move elements, so the rewriting
terminates.

Cost: one vector op replaces an op for each lane. Joining and splitting vectors in each step counts
as operations. Measured on CPU, gradients of 4 to 64 nodes: as fast as by hand, or faster; from 16
nodes on 4 to 18 times as fast as scalars with jax 0.12, 16 to 65 times with 0.10. Where no gradient
stores the scalars, XLA compiles 4 to 12 scalars to code up to twice as fast as vectors, and 24 to
code that takes 1.1 to 2.8 times as long (0.10: 4 to 100).
Source: https://github.com/jax-ml/jax/issues/40150; see `jaxpr_opt.analysis.scalars.packs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.scalars.packing import Pack, Packing
from jaxpr_opt.analysis.scalars.packs import packing
from jaxpr_opt.analysis.values.enclosing import is_differentiated
from jaxpr_opt.builders.packed_step import StepWriter, padding
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Phase, Scan
from jaxpr_opt.ir.nesting import phase_of
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Packed(Match):
    """A loop, and how its step is computed with vectors."""

    op: Scan
    packing: Packing


@dataclass(frozen=True)
class PackScalars(Pass[Packed]):
    """Scalars that a loop computes alike -> vectors."""

    name: ClassVar[str] = "pack-scalars"
    phase: ClassVar[Phase] = "differentiated"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[Packed]:
        readers = dict.fromkeys(user for stack in op.stacks for user in stack.result.users)
        for scan in (*(user for user in readers if isinstance(user, Scan)), op):
            found = packing(scan)
            if found is not None and (scan is op or _is_worthwhile(found)):
                says = (
                    f"{found.replaced} operations on scalars become {len(found.packs)} on vectors"
                )
                yield Packed(scan, says, found)

    def refuse(self, match: Packed) -> str | None:
        if not _is_worthwhile(match.packing):
            return "building and splitting the vectors takes as many operations"
        packs, computes_gradient = match.packing.packs, is_differentiated(match.op)
        if not computes_gradient and phase_of(match.op) == "differentiated":
            longer = next((pack for pack in packs if padding(pack.ops[0], len(pack.ops))), None)
            if longer is not None:
                return f"the gradient would store padded vectors of {longer.ops[0].name}"
        elif not computes_gradient and not cost_model().is_too_many_scalars(_widest(packs)):
            return "no gradient stores them, and so few are as fast in registers"
        return None

    def rewrite(self, match: Packed, rw: Rewriter) -> None:
        StepWriter(match.packing, rw).write()


def _is_worthwhile(found: Packing) -> bool:
    return cost_model().is_less_in_vectors(found.replaced, found.replaced - found.saved)


def _widest(packs: Iterable[Pack]) -> int:
    """The lanes of the pack that has most."""
    return max(len(pack.ops) for pack in packs)
